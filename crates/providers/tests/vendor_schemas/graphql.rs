//! Checks a GraphQL document and its variables against a schema: as much of the language as our documents use.

use std::collections::HashMap;

use serde_json::Value;

const SCALARS: [&str; 8] = ["String", "ID", "Int", "Float", "Boolean", "DateTime", "TimelessDate", "JSON"];

/// The types of objects and inputs, with GraphQL's own notation for types.
pub(crate) struct Schema(pub(crate) Value);

impl Schema {
    /// All mistakes of a document with its variables.
    pub(crate) fn check(&self, document: &str, variables: &Value) -> Vec<String> {
        let mut parser = Parser { tokens: tokens(document), at: 0 };
        let operation = parser.operation();
        let mut problems = Vec::new();
        for (name, kind) in &operation.variables {
            self.check_value(name, kind, variables.get(name), &mut problems);
        }
        let known = |name: &String| operation.variables.contains_key(name);
        problems.extend(
            variables
                .as_object()
                .unwrap()
                .keys()
                .filter(|name| !known(name))
                .map(|name| format!("${name} is unknown")),
        );
        let root = if operation.kind == "query" { "Query" } else { "Mutation" };
        self.check_fields(root, &operation.fields, &operation.variables, &mut problems);
        problems
    }

    fn check_fields(
        &self,
        parent: &str,
        fields: &[Field],
        variables: &HashMap<String, String>,
        problems: &mut Vec<String>,
    ) {
        for field in fields {
            let Some(found) = self.0["objects"][parent].get(&field.name) else {
                problems.push(format!("{parent} has no {}", field.name));
                continue;
            };
            let args = found["args"].as_object().unwrap();
            for (arg, variable) in &field.args {
                match (args.get(arg), variables.get(variable)) {
                    (None, _) => problems.push(format!("{parent}.{} has no argument {arg}", field.name)),
                    (_, None) => problems.push(format!("${variable} is not declared")),
                    (Some(wanted), Some(declared)) => {
                        let wanted = wanted.as_str().unwrap();
                        if wanted.trim_end_matches('!') != declared.trim_end_matches('!')
                            || (wanted.ends_with('!') && !declared.ends_with('!'))
                        {
                            problems.push(format!("${variable} is {declared}, not {wanted}"));
                        }
                    }
                }
            }
            let missing = args.iter().filter(|(arg, kind)| {
                kind.as_str().unwrap().ends_with('!') && !field.args.iter().any(|(given, _)| given == *arg)
            });
            problems.extend(missing.map(|(arg, _)| format!("{parent}.{} needs {arg}", field.name)));
            let kind = found["type"].as_str().unwrap().replace(['[', ']', '!'], "");
            if SCALARS.contains(&kind.as_str()) != field.fields.is_empty() {
                problems.push(format!("{parent}.{} needs fields, or must have none", field.name));
            }
            self.check_fields(&kind, &field.fields, variables, problems);
        }
    }

    fn check_value(&self, name: &str, kind: &str, value: Option<&Value>, problems: &mut Vec<String>) {
        let (plain, required) = kind.strip_suffix('!').map_or((kind, false), |plain| (plain, true));
        let Some(value) = value.filter(|value| !value.is_null()) else {
            problems.extend(required.then(|| format!("{name} is missing")));
            return;
        };
        if let Some(item) = plain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let Some(items) = value.as_array() else {
                problems.push(format!("{name} is not a list"));
                return;
            };
            for value in items {
                self.check_value(name, item, Some(value), problems);
            }
        } else if let Some(fields) = self.0["inputs"].get(plain).and_then(Value::as_object) {
            for (field, kind) in fields {
                self.check_value(field, kind.as_str().unwrap(), value.get(field), problems);
            }
            let given = value.as_object().into_iter().flat_map(|object| object.keys());
            problems.extend(
                given
                    .filter(|field| !fields.contains_key(*field))
                    .map(|field| format!("{plain} has no {field}")),
            );
        } else {
            let fits = match plain {
                "String" | "ID" => value.is_string(),
                "Int" => value.is_i64(),
                "Boolean" => value.is_boolean(),
                _ => false,
            };
            problems.extend((!fits).then(|| format!("{name} is not {plain}")));
        }
    }
}

struct Operation {
    kind: String,
    variables: HashMap<String, String>,
    fields: Vec<Field>,
}

struct Field {
    name: String,
    /// Arguments, each with the name of its variable.
    args: Vec<(String, String)>,
    fields: Vec<Field>,
}

struct Parser {
    tokens: Vec<String>,
    at: usize,
}

fn tokens(document: &str) -> Vec<String> {
    let mut spaced = String::new();
    for c in document.chars() {
        match c {
            '{' | '}' | '(' | ')' | ':' | ',' | '$' => spaced.extend([' ', c, ' ']),
            _ => spaced.push(c),
        }
    }
    spaced.split_whitespace().filter(|token| *token != ",").map(str::to_owned).collect()
}

impl Parser {
    fn peek(&self) -> &str {
        self.tokens.get(self.at).map_or("", String::as_str)
    }

    fn next(&mut self) -> String {
        self.at += 1;
        self.tokens[self.at - 1].clone()
    }

    fn expect(&mut self, token: &str) {
        let found = self.next();
        assert_eq!(found, token, "at {} of {:?}", self.at, self.tokens);
    }

    fn operation(&mut self) -> Operation {
        let kind = self.next();
        assert!(kind == "query" || kind == "mutation", "{kind}");
        self.next();
        let mut variables = HashMap::new();
        if self.peek() == "(" {
            self.expect("(");
            while self.peek() != ")" {
                self.expect("$");
                let name = self.next();
                self.expect(":");
                variables.insert(name, self.next());
            }
            self.expect(")");
        }
        let fields = self.selection();
        assert_eq!(self.at, self.tokens.len(), "something follows the operation");
        Operation { kind, variables, fields }
    }

    fn selection(&mut self) -> Vec<Field> {
        let mut fields = Vec::new();
        if self.peek() != "{" {
            return fields;
        }
        self.expect("{");
        while self.peek() != "}" {
            let name = self.next();
            let args = self.arguments();
            fields.push(Field { name, args, fields: self.selection() });
        }
        self.expect("}");
        fields
    }

    fn arguments(&mut self) -> Vec<(String, String)> {
        let mut args = Vec::new();
        if self.peek() != "(" {
            return args;
        }
        self.expect("(");
        while self.peek() != ")" {
            let name = self.next();
            self.expect(":");
            self.expect("$");
            args.push((name, self.next()));
        }
        self.expect(")");
        args
    }
}
