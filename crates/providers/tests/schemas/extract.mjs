// Extracts from the vendors' published packages the parts that our requests are checked against. Usage, in a directory
// that has the packages below in node_modules:
//   node …/extract.mjs <this directory>
// Packages: @octokit/openapi, @sentry/api, @slack/web-api, @linear/sdk. Only names, types and limits are kept, no prose.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const target = process.argv[2];
const text = (path) => readFileSync(join("node_modules", path), "utf8");
const version = (name) => `${name} ${JSON.parse(text(`${name}/package.json`)).version}`;
const save = (name, value) => writeFileSync(join(target, `${name}.json`), `${JSON.stringify(value, null, 1)}\n`);
const uncommented = (source) => source.replace(/\/\*\*[\s\S]*?\*\//g, "");

// GitHub: its OpenAPI document.
const KEYWORDS = ["type", "enum", "items", "properties", "required", "oneOf", "anyOf", "allOf", "minimum", "maximum", "additionalProperties"];
const github = JSON.parse(text("@octokit/openapi/generated/api.github.com.json"));
const resolve = (node) => (node.$ref ? node.$ref.slice(2).split("/").reduce((at, key) => at[key], github) : node);

function schema(node) {
	const found = resolve(node);
	const kept = {};
	for (const key of KEYWORDS.filter((key) => key in found)) {
		const value = found[key];
		if (key === "properties") kept[key] = Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, schema(inner)]));
		else if (Array.isArray(value) && typeof value[0] === "object") kept[key] = value.map(schema);
		else kept[key] = key === "items" ? schema(value) : value;
	}
	if (!found.nullable) return kept;
	if (kept.type && !kept.oneOf) return { ...kept, type: [kept.type, "null"], ...(kept.enum && { enum: [...kept.enum, null] }) };
	return { anyOf: [kept, { type: "null" }] };
}

function githubOperation(method, path) {
	const operation = github.paths[path][method];
	const parameters = (operation.parameters ?? []).map(resolve);
	const of = (place) => Object.fromEntries(parameters.filter((p) => p.in === place).map((p) => [p.name, schema(p.schema)]));
	const body = operation.requestBody?.content["application/json"].schema;
	return { method: method.toUpperCase(), path, parameters: of("path"), query: of("query"), body: body ? schema(body) : null };
}

const repo = "/repos/{owner}/{repo}";
save("github", {
	source: version("@octokit/openapi"),
	operations: [
		["get", "/issues"], ["post", "/issues"], ["get", "/issues/{issue_number}"], ["patch", "/issues/{issue_number}"],
		["get", "/issues/{issue_number}/comments"], ["post", "/issues/{issue_number}/comments"], ["get", "/pulls"], ["post", "/pulls"],
		["get", "/pulls/{pull_number}"], ["get", "/pulls/{pull_number}/files"], ["get", "/commits/{ref}/check-runs"], ["get", "/contents/{path}"],
	].map(([method, path]) => githubOperation(method, repo + path)),
});

// Types of TypeScript as JSON Schema: what the generated packages of Sentry and Slack use.
function jsonSchema(type) {
	const plain = type.trim();
	if (plain.startsWith("{")) return object(plain);
	if (/^'/.test(plain)) return { enum: plain.split("|").map((part) => part.trim().replaceAll("'", "")) };
	const array = /^Array<(.*)>$/s.exec(plain);
	if (array) return { type: "array", items: jsonSchema(array[1]) };
	if (["string", "number", "boolean"].includes(plain)) return { type: plain };
	if (plain === "false" || plain === "true") return { const: plain === "true" };
	throw new Error(`no schema for ${plain}`);
}

function object(source) {
	const properties = {};
	const required = [];
	let rest = source.trim().slice(1, -1);
	for (let field = next(rest); field; field = next(rest)) {
		properties[field.name] = jsonSchema(field.type);
		if (!field.optional) required.push(field.name);
		rest = field.rest;
	}
	return { type: "object", additionalProperties: false, required, properties };
}

function next(source) {
	const head = /^\s*(\w+)(\??):\s*/.exec(source);
	if (!head) return null;
	let depth = 0;
	let at = head[0].length;
	for (; at < source.length && (depth > 0 || source[at] !== ";"); at += 1) depth += { "{": 1, "}": -1 }[source[at]] ?? 0;
	return { name: head[1], optional: head[2] === "?", type: source.slice(head[0].length, at), rest: source.slice(at + 1) };
}

// Sentry: the data types of its generated client.
const sentry = uncommented(text("@sentry/api/dist/types.gen.d.ts"));
function sentryOperation(method, name) {
	const source = new RegExp(`export type ${name}Data = (\\{[\\s\\S]*?\\n\\});`).exec(sentry)[1];
	const fields = {};
	for (let rest = source.slice(1, -1), field = next(rest); field; rest = field.rest, field = next(rest)) fields[field.name] = field.type;
	const part = (type) => (type && type !== "never" ? jsonSchema(type) : null);
	return {
		method, path: fields.url.replaceAll("'", ""), parameters: part(fields.path)?.properties ?? {},
		query: part(fields.query)?.properties ?? {}, body: part(fields.body),
	};
}
save("sentry", {
	source: version("@sentry/api"),
	operations: [
		["GET", "ListAProjectSissues"], ["GET", "RetrieveAnIssue"], ["GET", "ListAnIssueSEvents"],
		["GET", "RetrieveAnIssueEvent"], ["PUT", "UpdateAnIssue"],
	].map(([method, name]) => sentryOperation(method, name)),
});

// Slack: the argument types of its client. ChatPostMessageArguments is an intersection; these are the parts we can send.
const slack = uncommented(text("@slack/web-api/dist/types/request/chat.d.ts"));
const slackPart = (name) => object(new RegExp(`interface ${name}(?: extends [^{]*)? (\\{[^}]*\\})`).exec(slack)[1]);
if (!/ChatPostMessageArguments = TokenOverridable & MessageContents & ReplyInThread &/.test(slack)) throw new Error("Slack's arguments changed");
const parts = ["Channel", "Text", "WithinThreadReply", "ThreadTS", "LinkNames", "Unfurls"].map(slackPart);
save("slack", {
	source: version("@slack/web-api"),
	operations: [{
		method: "POST", path: "/chat.postMessage", parameters: {}, query: {},
		body: {
			type: "object", additionalProperties: false, required: [...parts[0].required, ...parts[1].required],
			properties: Object.assign({}, ...parts.map((part) => part.properties)),
		},
	}],
});

// Linear: the schema types of its client, as GraphQL type references.
const linearFile = /from "\.\/(index-[\w-]+)\.mjs"/.exec(text("@linear/sdk/dist/index.d.mts"))[1];
const linear = uncommented(text(`@linear/sdk/dist/${linearFile}.d.mts`));
const block = (name) => new RegExp(`\\ntype ${name} = (?:Node & )?(\\{[\\s\\S]*?\\n\\});`).exec(linear)?.[1];
function reference(type) {
	const plain = type.trim();
	const optional = /^(?:Input)?Maybe<(.*)>$/s.exec(plain);
	if (optional) return reference(optional[1]).replace(/!$/, "");
	const array = /^Array<(.*)>$/s.exec(plain);
	if (array) return `[${reference(array[1])}]!`;
	const scalar = /^Scalars\["(\w+)"\]$/.exec(plain);
	return `${scalar ? scalar[1] : plain}!`;
}
const fields = (name) => {
	const found = {};
	for (let rest = block(name).slice(1, -1), field = next(rest); field; rest = field.rest, field = next(rest)) {
		if (field.name !== "__typename" && !/[^\w<>"[\]\s]/.test(field.type)) found[field.name] = reference(field.type);
	}
	return found;
};
const capital = (name) => name[0].toUpperCase() + name.slice(1);
function objectType(name, only) {
	const kept = Object.entries(fields(name)).filter(([field]) => !only || only.includes(field));
	const args = (field) => (block(`${name}${capital(field)}Args`) ? fields(`${name}${capital(field)}Args`) : {});
	return Object.fromEntries(kept.map(([field, type]) => [field, { type, args: args(field) }]));
}
const plain = ["id", "name", "displayName", "email", "key", "type", "url", "color"];
save("linear", {
	source: version("@linear/sdk"),
	objects: {
		Query: objectType("Query", ["issues", "issue"]),
		Mutation: objectType("Mutation", ["issueCreate", "issueUpdate", "commentCreate"]),
		...Object.fromEntries(["Issue", "IssueConnection", "IssuePayload", "Comment", "CommentConnection", "CommentPayload", "IssueLabelConnection", "PageInfo"].map((name) => [name, objectType(name)])),
		...Object.fromEntries(["IssueLabel", "WorkflowState", "User", "Team", "Project"].map((name) => [name, objectType(name, plain)])),
	},
	inputs: Object.fromEntries(["IssueFilter", "TeamFilter", "NullableProjectFilter", "IdComparator", "EntityIdentifierIdComparator", "IssueCreateInput", "IssueUpdateInput", "CommentCreateInput"].map((name) => [name, fields(name)])),
});
