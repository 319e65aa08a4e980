// Evaluations: what other policies would have earned, with intervals.
import { ask } from "./ask.js";
import { between, count, el, moment, payoff, svg } from "./draw.js";
import { card, link, main, note, table } from "./parts.js";

const NAMES = { logged: "what was shown", baseline: "the baseline", uniform: "a uniform choice", current: "the policy in force" };
const METHODS = [["dr", "Doubly robust"], ["dm", "Direct method"], ["snips", "SNIPS"], ["ips", "IPS"]];
const called = (name) => (Object.hasOwn(NAMES, name) ? NAMES[name] : name);

export function evaluations(id, still) {
  return async () => {
    const found = (await ask("/v1/evaluations")).evaluations;
    if (!still()) return;
    main.replaceChildren(
      el("h1", { tabindex: -1 }, "Evaluations"),
      el("p", { class: "lead" }, "What other policies would have earned on the log, without showing them to users."),
      el("div", { class: "grid" }, card("", "All evaluations",
        table([["Name", "id"], ["Made", "wide"], ["Status"], ["Verdict", "id wide"]],
          found.map((one) => ({ cells: [link("evaluation", one.id, one.name), moment(one.created), state(one), one.verdict || one.error || "–"] })),
          "There are none yet. Make one with PUT /v1/evaluations/{id}.", "The evaluations"))),
    );
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

function outcome(one) {
  const policies = one.result.policies, rows = [...policies].sort((a, b) => b.dr.value - a.dr.value);
  return [
    card("", "Verdict", el("p", {}, el("strong", {}, one.result.verdict), ". ", one.result.words), forest(rows),
      note(`Dots are doubly robust estimates, bars hold the truth in ${Math.round(100 * one.result.level)} of 100 logs. The line is what was shown.`)),
    card("", "The numbers",
      table([["Policy", "id"], ...METHODS.map(([, name]) => [name, "number"]), ["Worth (decisions)", "number"]],
        rows.map((p) => ({ chosen: p.policy === one.applied, cells: [called(p.policy), ...METHODS.map(([key]) => [payoff(p[key].value), el("br"), el("small", {}, between(p[key]))]), count(Math.round(p.effective_sample_size))] })),
        "No policy could be evaluated.", "Estimates"),
      ...one.result.notes.map((text) => note(text))),
  ];
}

export function evaluation(id, still) {
  return async () => {
    const one = await ask(`/v1/evaluations/${encodeURIComponent(id)}`);
    if (!still()) return;
    main.replaceChildren(
      el("h1", { tabindex: -1 }, one.name),
      el("p", { class: "lead" }, `Made ${moment(one.created)}${one.automatic ? " automatically" : ""}, `, state(one), one.result ? `, ${count(one.result.records)} decisions.` : "."),
      ...(one.error ? [el("p", { class: "error" }, one.error)] : []),
      el("div", { class: "grid" }, ...(one.result ? outcome(one) : [card("", "Not done yet", el("p", { class: "empty" }, "Come back in a while."))])),
    );
  };
}
