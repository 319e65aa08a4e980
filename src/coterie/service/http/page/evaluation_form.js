// The form that starts an evaluation, by PUT /v1/evaluations/{id}.
import { Refused, ask } from "./ask.js";
import { el } from "./draw.js";

let draft = {};  // what was typed, so that giving a key or looking at another page loses nothing

// A line such as "linucb" or "cab:alpha=0.3:gamma=0.2", as on the command line. The line is also the policy's name.
function parsePolicy(line) {
  const [policy, ...settings] = line.split(":").map((part) => part.trim()), parameters = {};
  for (const setting of settings) {
    const [, name, text] = /^([^=]+)=(.+)$/.exec(setting) || [];
    if (!name) throw new Refused(`In "${line}", "${setting}" is not a parameter; write it as name=value, such as cab:alpha=0.3`);
    try { parameters[name.trim()] = JSON.parse(text); } catch { parameters[name.trim()] = text.trim(); }
  }
  return { name: line, policy: policy.toLowerCase(), parameters };
}

function parseTime(input, name) {
  if (input.validity.badInput) throw new Refused(`"${name}" is not a whole date with a time; complete it or leave it empty`);
  return input.value ? { [name === "From" ? "start" : "end"]: new Date(input.value).getTime() } : {};
}

export function startForm() {
  const now = new Date().toISOString().slice(0, 16).replace("T", " ");
  const name = el("input", { id: "evaluation-name", required: true, maxlength: 256, autocomplete: "off" });
  const from = el("input", { id: "evaluation-from", type: "datetime-local" }), to = el("input", { id: "evaluation-to", type: "datetime-local" });
  const policies = el("textarea", { id: "evaluation-policies", class: "low", spellcheck: "false", autocapitalize: "off", "aria-describedby": "evaluation-policies-note" });
  const search = el("input", { id: "evaluation-search", type: "checkbox" });
  const fields = { name, from, to, policies };
  for (const [key, field] of Object.entries(fields)) field.value = draft[key] ?? (key === "name" ? now : "");
  search.checked = draft.search ?? true;
  const answer = el("div", { "aria-live": "polite" }), button = el("button", { type: "submit" }, "Start");

  async function start() {
    const chosen = policies.value.split("\n").map((line) => line.trim()).filter(Boolean).map(parsePolicy);
    const body = { name: name.value, ...parseTime(from, "From"), ...parseTime(to, "To"), policies: chosen, search: search.checked };
    if (body.end !== undefined && body.end <= (body.start ?? 0)) throw new Refused('"To" is not after "From"; choose a later end, or leave it empty');
    const made = await ask(`/v1/evaluations/${encodeURIComponent(name.value)}`, { method: "PUT", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    draft = {};
    location.hash = `#/evaluation/${encodeURIComponent(made.id)}`;
  }

  const form = el("form", {
    oninput: () => { draft = { ...Object.fromEntries(Object.entries(fields).map(([key, field]) => [key, field.value])), search: search.checked }; },
    onsubmit: (sent) => {
      sent.preventDefault();
      button.disabled = true;  // a second tap would be refused, because the name is taken
      answer.replaceChildren(el("p", { class: "note" }, "Starting…"));
      start()
        .then(() => answer.replaceChildren(), (error) => answer.replaceChildren(el("p", { class: "error", role: "alert" }, `It was not started: ${error.message}.`)))
        .finally(() => { button.disabled = false; });
    },
  },
    el("label", { for: "evaluation-name" }, "Name"), name,
    el("div", { class: "pair" },
      el("div", {}, el("label", { for: "evaluation-from" }, "From (empty: the beginning)"), from),
      el("div", {}, el("label", { for: "evaluation-to" }, "To (empty: now)"), to)),
    el("label", { for: "evaluation-policies" }, "Policies to compare (may be empty)"),
    el("p", { class: "note", id: "evaluation-policies-note" }, "One per line, with its parameters after colons: linucb, hierarchical or cab:alpha=0.3. What was shown, the baseline, a uniform choice and the policy in force are always compared."), policies,
    el("label", { class: "check", for: "evaluation-search" }, search, "Also try a few policies like the one in force"),
    button, answer);
  return el("details", { class: "card", open: Object.keys(draft).length > 0 }, el("summary", {}, el("h2", {}, "Start an evaluation")), form);
}
