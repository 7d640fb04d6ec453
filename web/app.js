// The first page: logs a person in by the link they opened, then says who they are and how the gateway is.

const element = (id) => document.getElementById(id);

/** Asks our own gateway; the login travels as a cookie that this script cannot read. */
async function ask(method, path, body) {
  const options = { method, headers: { Accept: "application/json" } };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  return { status: response.status, body: await response.json() };
}

function notice(text, isWrong) {
  element("notice").textContent = text;
  element("notice").classList.toggle("wrong", isWrong);
}

function pair(term, text) {
  const dt = document.createElement("dt");
  const dd = document.createElement("dd");
  dt.textContent = term;
  dd.textContent = text ?? "–";
  return [dt, dd];
}

/** Uses up the code of a login link. It stands behind a `#`, which browsers do not send, and leaves the history too. */
async function loginByLink() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (location.pathname !== "/login" || !code) return;
  history.replaceState(null, "", "/");
  const login = await ask("POST", "/v1/login", { code });
  if (login.status === 401) {
    throw new Error("This login link was used already or has expired. Make a new one with: proliferate login-link");
  }
  if (login.status !== 200) {
    throw new Error(`${login.body.error}: open the gateway at the address it printed (PUBLIC_URL).`);
  }
}

async function showWho() {
  const me = await ask("GET", "/v1/me");
  if (me.status !== 200) {
    notice("Nobody is logged in. Make a login link with: proliferate login-link", false);
    return;
  }
  element("me").replaceChildren(
    ...pair("User", me.body.userId), ...pair("Organization", me.body.orgId), ...pair("Role", me.body.role),
  );
  element("who").hidden = false;
  element("logout").hidden = false;
  notice("You are logged in.", false);
  offerDeviceLogin();
}

async function showState() {
  const ready = await ask("GET", "/ready");
  element("checks").replaceChildren(...ready.body.checks.map((check) => {
    const item = document.createElement("li");
    item.className = check.ok ? "ok" : "down";
    item.textContent = `${check.name}: ${check.detail}`;
    return item;
  }));
  element("state").hidden = false;
}

/** Lets a logged-in person approve the device that shows a code: `/device?code=ABCD-1234`. */
function offerDeviceLogin() {
  if (location.pathname !== "/device") return;
  element("device").hidden = false;
  element("device-code").value = new URLSearchParams(location.search).get("code") ?? "";
  if (element("device-code").value) showDevice();
}

const devicePath = () => `/v1/device-logins/${encodeURIComponent(element("device-code").value.trim())}`;

async function showDevice() {
  const waiting = await ask("GET", devicePath());
  element("device-answer").hidden = waiting.status !== 200;
  if (waiting.status !== 200) {
    notice(waiting.body.error, true);
    return;
  }
  element("device-name").textContent = waiting.body.clientName;
}

async function answerDevice(verb) {
  const answer = await ask("POST", `${devicePath()}/${verb}`, {});
  if (answer.status === 200) element("device").hidden = true;
  notice(answer.status === 200 ? `The login was ${verb === "deny" ? "denied" : "approved"}.` : answer.body.error,
    answer.status !== 200);
}

element("device-form").addEventListener("submit", (event) => {
  event.preventDefault();
  showDevice();
});
element("device-approve").addEventListener("click", () => answerDevice("approve"));
element("device-deny").addEventListener("click", () => answerDevice("deny"));

element("logout").addEventListener("click", async () => {
  await ask("POST", "/v1/logout", {});
  location.assign("/");
});

try {
  await loginByLink();
  await showWho();
  await showState();
} catch (error) {
  notice(error.message, true);
}
