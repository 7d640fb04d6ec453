// What the agent's own shell must know to work where nobody sits at a keyboard: without it, a command that asks
// a question or pages its output waits for ever.
const quiet = {
  CI: "1",
  DEBIAN_FRONTEND: "noninteractive",
  GIT_EDITOR: "true",
  GIT_PAGER: "cat",
  GIT_TERMINAL_PROMPT: "0",
  PAGER: "cat",
};

export const Proliferate = async () => ({
  "shell.env": async (_input, output) => {
    Object.assign(output.env, quiet);
  },
  // What may be left out is known only to the tools themselves.
  "tool.definition": async ({ toolID }, output) => {
    const schema = globalThis.proliferateSchemas?.[toolID];
    if (schema) output.jsonSchema = schema;
  },
});
