// Evaluations: what other policies would have earned, with intervals.
import { ask } from "./ask.js";
import { between, count, el, meter, moment, payoff, svg } from "./draw.js";
import { startForm } from "./evaluation_form.js";
import { card, link, live, main, note, redraw, table } from "./parts.js";

const NAMES = { logged: "what was shown", baseline: "the baseline", uniform: "a uniform choice", current: "the policy in force" };
const METHODS = [["dr", "Doubly robust"], ["dm", "Direct method"], ["snips", "SNIPS"], ["ips", "IPS"]];
const called = (name) => (Object.hasOwn(NAMES, name) ? NAMES[name] : name);

const STATES = {
  waiting: ["It waits for its turn", "Evaluations run one at a time. The result appears here."],
  running: ["It runs", "The policies are replayed on the log, in a process beside the service; decisions are not delayed. The result appears here."],
  failed: ["It failed", "Nothing was changed. You can start another one that avoids this."],
  timeout: ["It took too long", "Nothing was changed. Start one with a shorter time or fewer policies."],
};
const PLACES = { action: "the action", context: "the context" };
const SHOWN = 20;  // features

export function evaluations(id, still) {
  const rows = el("div");
  main.replaceChildren(
    el("h1", { tabindex: -1 }, "Evaluations"),
    el("p", { class: "lead" }, "What other policies would have earned on the log, without showing them to users."),
    startForm(),
    el("div", { class: "grid" }, card("", "All evaluations", rows)),
  );
  return async () => {
    const found = (await ask("/v1/evaluations")).evaluations;
    if (!still()) return;
    redraw(rows, table([["Name", "id"], ["Made", "wide"], ["Status"], ["Verdict", "id wide"]],
      found.map((one) => ({ cells: [link("evaluation", one.id, one.name), moment(one.created), state(one), one.verdict || one.error || "–"] })),
      "There are none yet.", "The evaluations"));
  };
}

const state = (one) => el("span", { class: one.applied ? "tag strong" : "tag" }, one.applied ? "applied" : one.status);

// One line per policy, the best on top: the estimate and its interval on a common scale.
function forest(policies) {
  const low = Math.min(0, ...policies.map((p) => p.dr.low)), high = Math.max(0.05, ...policies.map((p) => p.dr.high));
  const box = el("div", { class: "chart" }), width = Math.max(260, main.clientWidth - 80), line = 44, left = 8, right = width - 8;
  const x = (v) => left + ((v - low) / (high - low)) * (right - left), shown = policies.find((p) => p.policy === "logged");
  const said = policies.map((p) => `${called(p.policy)} ${payoff(p.dr.value)}, ${between(p.dr)}`).join("; ");
  const chart = svg("svg", { viewBox: `0 0 ${width} ${policies.length * line + 8}`, width, height: policies.length * line + 8, role: "img", "aria-label": `What each policy would have earned per decision: ${said}` });
  if (shown) chart.append(svg("line", { class: "axis", x1: x(shown.dr.value), x2: x(shown.dr.value), y1: 0, y2: policies.length * line }));
  policies.forEach((p, k) => {
    const y = k * line + 32, kind = p.policy === "logged" ? "group3" : k ? "group1" : "", name = called(p.policy);
    chart.append(
      svg("text", { x: left, y: y - 12 }, `${name.length > 28 ? `${name.slice(0, 27)}…` : name}: ${payoff(p.dr.value)}`),
      svg("line", { class: `span ${kind}`, x1: x(p.dr.low), x2: x(p.dr.high), y1: y, y2: y }),
      svg("circle", { class: `dot ${kind}`, cx: x(p.dr.value), cy: y, r: 5 }),
    );
  });
  box.append(chart);
  return box;
}

function outcome(one, again) {
  const policies = one.result.policies, rows = [...policies].sort((a, b) => b.dr.value - a.dr.value);
  return [
    card("", "Verdict", el("p", {}, el("strong", {}, one.result.verdict), ". ", one.result.words), forest(rows),
      note(`Dots are doubly robust estimates, bars hold the truth in ${Math.round(100 * one.result.level)} of 100 logs. The line is what was shown.`)),
    importances(one.result.features),
    applyForm(one, again),
    card("", "The numbers",
      table([["Policy", "id"], ...METHODS.map(([, name]) => [name, "number"]), ["Worth (decisions)", "number"]],
        rows.map((p) => ({ chosen: p.policy === one.applied, cells: [called(p.policy), ...METHODS.map(([key]) => [payoff(p[key].value), el("br"), el("small", {}, between(p[key]))]), count(Math.round(p.effective_sample_size))] })),
        "No policy could be evaluated.", "Estimates"),
      ...one.result.notes.map((text) => note(text))),
  ];
}

// Which features matter: those that change the differences between the actions' estimates most.
function importances(features) {
  if (!features) return card("half", "Features that matter", el("p", { class: "empty" }, "An earlier version made this evaluation, without the importance of features."));
  const rows = features.slice(0, SHOWN).map((one) => ({ cells: [one.name, PLACES[one.namespace] || one.namespace, el("span", { class: "measure" }, meter(one.score / 100), el("span", { class: "amount" }, one.score.toFixed(1)))] }));
  return card("half", "Features that matter",
    table([["Feature", "id"], ["Of", ""], ["Importance", ""]], rows, "The decisions of this time have no features.", "Features"),
    features.length > SHOWN ? note(`and ${count(features.length - SHOWN)} more, which matter less`) : null,
    features.length ? note("How much a feature changes the differences between the actions' estimates; 100 is the feature that matters most.") : null);
}

// A form that makes one of the evaluated policies the policy in force.
function applyForm(one, again) {
  const choices = one.policies.filter((policy) => policy.name !== "current");
  if (!choices.length) return null;
  const select = el("select", { id: "apply" }, choices.map((policy) => el("option", { value: policy.name, selected: policy.name === one.result.policies[0].policy }, policy.name)));
  const answer = el("div", { "aria-live": "polite" }), button = el("button", { type: "submit" }, "Apply");
  return card("half", "Apply a policy", el("form", { onsubmit: (sent) => {
    sent.preventDefault();
    button.disabled = true;
    answer.replaceChildren(note("It learns the log, then it takes over…"));
    send(`${path(one.id)}/apply`, "POST", { policy: select.value })
      .then(again)
      .catch((error) => answer.replaceChildren(el("p", { class: "error", role: "alert" }, `It was not applied: ${error.message}.`)))
      .finally(() => { button.disabled = false; });
  } }, el("label", { for: "apply" }, "Policy"), select, note("It first learns the log, then it decides for all users. The policy in force now can be restored in the configuration."), button, answer));
}

// A button that deletes the evaluation when it is pressed a second time.
function deleteButton(one) {
  const answer = el("div", { "aria-live": "polite" });
  let sure = false;
  const button = el("button", { type: "button", onclick: () => {
    if (!sure) { sure = true; button.textContent = "Really delete it"; return; }
    send(path(one.id), "DELETE")
      .then(() => { location.hash = "#/evaluations"; })
      .catch((error) => answer.replaceChildren(el("p", { class: "error", role: "alert" }, `It was not deleted: ${error.message}.`)));
  } }, one.status === "waiting" || one.status === "running" ? "Stop and delete it" : "Delete it");
  return el("div", { class: "foot" }, button, answer);
}

const path = (id) => `/v1/evaluations/${encodeURIComponent(id)}`;
const send = (to, method, body) => ask(to, { method, ...(body && { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }) });

export function evaluation(id, still) {
  let shown = null;  // the status on the page; what is finished is not asked for again
  async function refresh(anew) {
    if (!anew && shown && shown !== "waiting" && shown !== "running") return;
    const one = await ask(path(id));
    if (!still() || (!anew && one.status === shown)) return;
    const focused = shown !== null && main.contains(document.activeElement);
    shown = one.status;
    const [title, words] = STATES[one.status] || [];
    main.replaceChildren(
      el("p", {}, el("a", { href: "#/evaluations" }, "Evaluations")),
      el("h1", { tabindex: -1 }, one.name),
      el("p", { class: "lead" }, `Made ${moment(one.created)}${one.automatic ? " automatically" : ""}, `, state(one), one.result ? `, ${count(one.result.records)} decisions.` : "."),
      el("div", { class: "grid start" }, one.result
        ? outcome(one, () => refresh(true))
        : card("", title, one.error ? el("p", { class: "error" }, one.error) : null, el("p", {}, words))),
      deleteButton(one),
    );
    if (focused) main.querySelector("h1").focus();
    live.textContent = one.result ? "The evaluation is done." : `${title}.`;
  }
  return () => refresh(false);
}
