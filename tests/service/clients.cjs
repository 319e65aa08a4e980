// Drives both npm packages of Personalizer, unchanged, and prints what they answered as JSON: one list of calls.
// Usage: NODE_PATH=… node clients.cjs URL KEY < calls
// A call is [package, path or method, arguments…]; "rest" is @azure-rest/ai-personalizer, "old" the one before it.
const rest = require("@azure-rest/ai-personalizer");
const { PersonalizerClient } = require("@azure/cognitiveservices-personalizer");
const { ApiKeyCredentials } = require("@azure/ms-rest-js");

const [url, key] = process.argv.slice(2);
const headers = { inHeader: { "Ocp-Apim-Subscription-Key": key } };
const options = { allowInsecureConnection: true, retryOptions: { maxRetries: 0 } };
const ours = rest.default(url, { key }, options);
const old = new PersonalizerClient(new ApiKeyCredentials(headers), url);

async function viaRest(method, path, parameters, body, contentType) {
  const given = { ...(contentType ? { contentType } : {}), ...(body === undefined ? {} : { body: contentType ? Buffer.from(body, "base64") : body }) };
  const answer = await ours.path(path, ...parameters)[method](given);
  return { status: Number(answer.status), body: answer.body ?? null, headers: answer.headers, unexpected: rest.isUnexpected(answer) };
}

async function viaOld(name, parameters) {
  const target = name.startsWith("events.") ? old.events : old, method = name.replace("events.", "");
  try {
    const answer = await target[method](...parameters);
    return { status: answer._response.status, body: answer._response.parsedBody ?? null, headers: answer._response.headers.rawHeaders() };
  } catch (error) {
    return { status: error.statusCode, body: error.body ?? null, headers: error.response.headers.rawHeaders() };
  }
}

async function main() {
  const chunks = [];
  for await (const chunk of process.stdin) chunks.push(chunk);
  const found = [];
  for (const [kind, ...call] of JSON.parse(Buffer.concat(chunks))) found.push(await (kind === "rest" ? viaRest : viaOld)(...call));
  process.stdout.write(JSON.stringify(found));
}

main().catch((error) => { console.error(error); process.exit(1); });
