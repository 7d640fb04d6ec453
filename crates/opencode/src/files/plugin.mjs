// Environment variables for non-interactive use of the agent's shell: without them, a command that asks a question
// or pages its output would wait forever.
const nonInteractive = {
  CI: "1",
  DEBIAN_FRONTEND: "noninteractive",
  GIT_EDITOR: "true",
  GIT_PAGER: "cat",
  GIT_TERMINAL_PROMPT: "0",
  PAGER: "cat",
};

export const Proliferate = async () => ({
  "shell.env": async (_input, output) => {
    Object.assign(output.env, nonInteractive);
  },
  // OpenCode treats every argument as required; only the tools themselves know which ones are optional.
  "tool.definition": async ({ toolID }, output) => {
    const schema = globalThis.proliferateSchemas?.[toolID];
    if (schema) output.jsonSchema = schema;
  },
});
