// A tool that runs inside the sandbox and calls nobody. The gateway sees the call in the agent's events.
const NAME = "@NAME@";
const VERSION = "@VERSION@";
const DESCRIPTION = "@DESCRIPTION@";
const SCHEMA = "@SCHEMA@";
const answer = "@EXECUTE@";

// OpenCode treats every argument as required; our plugin replaces its schema with this one.
(globalThis.proliferateSchemas ??= {})[NAME] = SCHEMA;

const MOST = 40;
const KINDS = { object: "an object", array: "a list", string: "a text", boolean: "true or false" };
const kindOf = (value) => (Array.isArray(value) ? "array" : value === null ? "null" : typeof value);
const isShowable = (name) => /^[A-Za-z_][A-Za-z0-9_-]{0,49}$/.test(name);

const length = (size, least = 0, most = Infinity, what, field) => [
  ...(size < least ? [`${field} must have at least ${least} ${what}`] : []),
  ...(size > most ? [`${field} must have at most ${most} ${what}`] : []),
];

const ofText = (schema, text, field) => {
  const fits = !schema.pattern || new RegExp(schema.pattern, "u").test(text);
  const found = length([...text].length, schema.minLength, schema.maxLength, "characters", field);
  return fits ? found : [...found, `${field} must match ${schema.pattern}`];
};

const ofList = (schema, list, field) => [
  ...length(list.length, schema.minItems, schema.maxItems, "entries", field),
  ...list.flatMap((entry, index) => violations(schema.items, entry, `${field}[${index}]`)),
];

const ofObject = (schema, object, at) => {
  const inner = (name) => (at ? `${at}.${name}` : name);
  const has = (name) => Object.hasOwn(object, name) && object[name] !== undefined;
  const known = Object.keys(schema.properties);
  const missing = schema.required.filter((name) => !has(name)).map((name) => `${inner(name)} is required`);
  const unknown = Object.keys(object).filter((name) => !known.includes(name));
  const names = unknown.slice(0, MOST).map((name) => (isShowable(name) ? name : "a parameter"));
  const extra = unknown.length > 0 ? [`${at || "the arguments"} has unknown fields: ${names.join(", ")}`] : [];
  const present = known.filter(has);
  const wrong = present.flatMap((name) => violations(schema.properties[name], object[name], inner(name)));
  return [...missing, ...extra, ...wrong];
};

// Every violation of the schema, named as the gateway does for its tools: field and limit, and no value.
const violations = (schema, value, at) => {
  const field = at || "the arguments";
  if (schema.enum) {
    return schema.enum.includes(value) ? [] : [`${field} must be one of ${JSON.stringify(schema.enum)}`];
  }
  if (kindOf(value) !== schema.type) return [`${field} must be ${KINDS[schema.type]}`];
  if (schema.type === "string") return ofText(schema, value, field);
  if (schema.type === "array") return ofList(schema, value, field);
  return schema.type === "object" ? ofObject(schema, value, at) : [];
};

const listed = (problems) => {
  const more = problems.length > MOST ? [`and ${problems.length - MOST} more`] : [];
  return "Invalid arguments: " + [...problems.slice(0, MOST), ...more].join(", ");
};

export default {
  description: DESCRIPTION,
  args: SCHEMA.properties,
  async execute(args = {}) {
    const problems = violations(SCHEMA, args, "");
    return problems.length > 0 ? listed(problems) : answer(args);
  },
};
