// A tool that runs inside the sandbox and calls nobody. The gateway sees the call in the agent's events.
const NAME = "@NAME@";
const VERSION = "@VERSION@";
const DESCRIPTION = "@DESCRIPTION@";
const SCHEMA = "@SCHEMA@";

// OpenCode treats every argument as required; our plugin replaces its schema with this one.
(globalThis.proliferateSchemas ??= {})[NAME] = SCHEMA;

export default {
  description: DESCRIPTION,
  args: SCHEMA.properties,
  "@EXECUTE@",
};
