// Drives the official client: each line of the input is a tool and its arguments, or null to list the tools.
import { createInterface } from "node:readline";

const [packages, url, token] = process.argv.slice(2);
const load = (file) => import(`file://${packages}/@modelcontextprotocol/sdk/dist/esm/client/${file}`);
const { Client } = await load("index.js");
const { StreamableHTTPClientTransport } = await load("streamableHttp.js");

const client = new Client({ name: "test", version: "1" });
const requestInit = { headers: { authorization: `Bearer ${token}` } };
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit }));

const answer = async (call) => {
  try {
    return call ? await client.callTool({ name: call[0], arguments: call[1] }) : await client.listTools();
  } catch (error) {
    return { refused: { code: error.code, message: String(error.message) } };
  }
};
for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await answer(JSON.parse(line))));
}
await client.close();
