// A tool that the gateway executes. It retries with the same id until it has an answer, so that a connection that
// breaks does not cause a second effect.
const NAME = "@NAME@";
const VERSION = "@VERSION@";
const DESCRIPTION = "@DESCRIPTION@";
const SCHEMA = "@SCHEMA@";
const ATTEMPTS = 6;
const PAUSE_MS = 500;
const TIMEOUT_MS = 120000;

// OpenCode treats every argument as required; our plugin replaces its schema with this one.
(globalThis.proliferateSchemas ??= {})[NAME] = SCHEMA;

const readSession = async () => {
  const env = process.env;
  try {
    const { sessionId, token } = await Bun.file(env.PROLIFERATE_SESSION_FILE).json();
    return { sessionId, token };
  } catch {
    return { sessionId: env.PROLIFERATE_SESSION_ID, token: env.SANDBOX_MCP_AUTH_TOKEN };
  }
};

const ask = async (url, token, body) => {
  const headers = { "content-type": "application/json", authorization: "Bearer " + token };
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const answer = await fetch(url, { method: "POST", headers, body, signal });
  if (answer.status === 429 || answer.status >= 502) throw new Error("Gateway error " + answer.status);
  const text = await answer.text();
  if (!answer.ok) return "Gateway error " + answer.status + ": " + text.slice(0, 200);
  return String(JSON.parse(text).result);
};

export default {
  description: DESCRIPTION,
  args: SCHEMA.properties,
  async execute(args, context) {
    const { sessionId, token } = await readSession();
    const gateway = process.env.PROLIFERATE_GATEWAY_URL;
    if (!gateway || !sessionId || !token) return NAME + " is not available: this agent has no gateway.";
    const url = gateway.replace(/\/+$/, "") + "/proliferate/" + sessionId + "/tools/" + NAME;
    // Some providers number the calls of each message anew.
    const id = context?.callID ? [context.messageID, context.callID].filter(Boolean).join(":") : crypto.randomUUID();
    const body = JSON.stringify({ tool_call_id: id, args: args ?? {}, version: VERSION });
    for (let attempt = 1; ; attempt++) {
      try {
        return await ask(url, token, body);
      } catch (error) {
        if (attempt === ATTEMPTS) return "Network error: " + String(error?.message ?? error);
        await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * 2 ** (attempt - 1)));
      }
    }
  },
};
