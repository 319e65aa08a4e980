// Calls the JSON routes. The key is kept in this tab and sent only as a header, never in an address.
const dialog = document.getElementById("key-dialog"), KEY = "coterie-key";

export class Refused extends Error {}
export const locked = () => dialog.open;

export async function ask(path, options = {}) {
  const headers = { Accept: "application/json", ...(options.headers || {}) };
  const kept = sessionStorage.getItem(KEY);
  if (kept) headers["X-API-Key"] = kept;
  const answer = await fetch(path, { ...options, headers, cache: "no-store" });
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  const body = await answer.json().catch(() => ({}));
  const message = body.error ? body.error.message : `the service answered ${answer.status}`;
  if (answer.status === 401 || answer.status === 403) unlock(message);
  throw new Refused(message);
}

function unlock(message) {
  if (dialog.open) return;
  if (sessionStorage.getItem(KEY)) document.getElementById("key-why").textContent = `The key does not fit: ${message}.`;
  dialog.showModal();
}

// Calls `then` when a key was given.
export function onKey(then) {
  document.getElementById("key-form").addEventListener("submit", () => {
    const input = document.getElementById("key");
    sessionStorage.setItem(KEY, input.value.trim().replace(/[^\x21-\x7e]/g, ""));
    input.value = "";
    then();
  });
}
