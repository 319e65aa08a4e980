// The overview: what was decided and earned, by whom together, how fast.
import { ask } from "./ask.js";
import { bars, count, el, key, lines, millis, moment, payoff, percent } from "./draw.js";
import { card, decisionsTable, figure, live, main, note, table } from "./parts.js";

let minutes = 60, paused = false;
export const isPaused = () => paused;

const SERIES = [
  { name: "this service", key: "payoff", kind: "ours" },
  { name: "baseline", key: "baseline", kind: "baseline" },
  { name: "uniform choice", key: "uniform", kind: "uniform" },
];

// How much better ours is; said only where the estimate of theirs is worth enough decisions.
function lift(ours, theirs, worth) {
  if (ours === null || theirs === null || Math.abs(theirs) < 1e-9) return "too few decisions to tell";
  if (worth < 100) return `rough: worth ${count(Math.round(worth))} decisions`;
  const gain = (ours - theirs) / Math.abs(theirs);
  return ["ours is ", el("span", { class: gain >= 0 ? "good" : "bad" }, `${gain >= 0 ? "+" : "−"}${Math.abs(100 * gain).toFixed(0)} %`)];
}

export function overview(id, still) {
  const figures = el("dl", { class: "figures" }), curve = el("div"), shares = el("div"), sizes = el("div"), speed = el("div"), latest = el("div");
  const spans = [[60, "1 hour"], [1440, "1 day"], [10080, "7 days"]];
  const buttons = spans.map(([span, name]) =>
    el("button", { type: "button", "aria-pressed": String(span === minutes), onclick: (event) => {
      minutes = span;
      for (const button of buttons) button.setAttribute("aria-pressed", String(button === event.currentTarget));
      refresh();
    } }, name),
  );
  const pause = el("button", { type: "button", "aria-pressed": String(paused), onclick: () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    if (!paused) refresh();
  } }, paused ? "Go on" : "Pause");
  main.replaceChildren(
    el("div", { class: "row" }, el("h1", { tabindex: -1 }, "What was decided and earned"), el("div", { class: "buttons" }, pause)),
    el("p", { class: "lead" }, "Payoffs, the decisions behind them, and who decided with whom."),
    figures,
    el("div", { class: "grid" },
      el("section", { class: "card" }, el("div", { class: "row" }, el("h2", {}, "Average payoff over time"), el("div", { class: "buttons", role: "group", "aria-label": "Time shown" }, buttons)), curve),
      card("third", "Users a decision rests on", sizes),
      card("third", "Learned by sharing", shares),
      card("third", "Latency since the start", speed),
      card("", "Latest decisions", latest)),
  );
  const draw = (container, ...children) => { if (!container.contains(document.activeElement)) container.replaceChildren(...children); };
  async function refresh() {
    const [now, recent] = await Promise.all([ask(`/v1/statistics?minutes=${minutes}`), ask("/v1/decisions?limit=15")]);
    if (!still()) return;
    const total = now.total;
    draw(figures,
      figure("Decisions", count(total.decisions), `${count(now.waiting)} wait for a reward`),
      figure("Average payoff", payoff(total.payoff), `${count(total.learned)} payoffs learned`),
      figure("The baseline's", payoff(total.baseline), lift(total.payoff, total.baseline, total.baselineWorth)),
      figure("A uniform choice's", payoff(total.uniform), lift(total.payoff, total.uniform, total.uniformWorth)),
      figure("Users", count(now.users), el("a", { href: "#/users" }, "see them")),
      figure("Items", count(now.items), el("a", { href: "#/items" }, "see them")));
    draw(curve, ...payoffs(now.curve));
    draw(sizes, ...neighbourhoods(recent));
    draw(shares, ...sharing(now));
    const { rankLatency: rank, commitLatency: commit } = now;
    draw(speed,
      bars([["rank, half", rank.p50], ["90 %", rank.p90], ["99 %", rank.p99], ["log, half", commit.p50], ["90 %", commit.p90], ["99 %", commit.p99]].filter(([, s]) => s !== null).map(([name, s]) => ({ name, value: s, text: millis(s) })), "Latency"),
      note(rank.calls ? `${count(rank.calls)} rank calls over HTTP and ${count(commit.calls)} commits to the log: within how long they were done.` : `${count(commit.calls)} commits to the log, within how long they were done. No rank calls came over HTTP yet.`));
    draw(latest, decisionsTable(recent.decisions, true));
    live.textContent = `${now.policy}, ${now.mode}, ${percent(now.exploration)} by chance`;
  }
  return refresh;
}

function payoffs(points) {
  if (!points.length) return [el("p", { class: "empty" }, "Nothing was learned in this time.")];
  const values = SERIES.map((s) => el("b", {}, payoff(points[points.length - 1][s.key])));
  const when = el("span", {}, "latest");
  const told = (p) => {
    const shown = p || points[points.length - 1];
    SERIES.forEach((s, k) => { values[k].textContent = payoff(shown[s.key]); });
    when.textContent = p ? moment(p.start) : "latest";
  };
  const legend = el("ul", { class: "legend" }, SERIES.map((s, k) => el("li", {}, key(s.kind), `${s.name} `, values[k])), el("li", {}, when));
  const rows = points.slice(-30).reverse().map((p) => ({ cells: [moment(p.start), count(p.decisions), payoff(p.payoff), payoff(p.baseline), payoff(p.uniform)] }));
  return [
    legend,
    lines(points, SERIES, "Average payoff over time", payoff, told),
    note(`The click rate, where a reward is a click. What the baseline and a uniform choice would have earned is estimated by inverse propensity, mostly from the few decisions made by chance: the latest points are worth about ${count(Math.round(points[points.length - 1].baselineWorth))} and ${count(Math.round(points[points.length - 1].uniformWorth))} decisions.`),
    el("details", {}, el("summary", {}, "As a table"), table([["From"], ["Decisions", "number"], ["Payoff", "number"], ["Baseline", "number"], ["Uniform", "number"]], rows, "", "Average payoff over time")),
  ];
}

function neighbourhoods(recent) {
  if (!recent.sizes.length) return [el("p", { class: "empty" }, "No decisions yet.")];
  const rows = recent.sizes.map((s) => ({ name: s.least === s.most ? String(s.least) : `${s.least}–${s.most}`, value: s.decisions, text: count(s.decisions) }));
  return [bars(rows, "Neighbourhood sizes"), note(`Half of the latest decisions rested on ${count(recent.median)} users or more.`)];
}

function sharing(now) {
  const points = now.curve.filter((p) => p.shareRate !== null);
  if (!points.length) return [el("p", { class: "empty" }, "Nothing was learned yet.")];
  return [
    lines(points, [{ name: "share rate", key: "shareRate", kind: "ours" }], "Share rate over time", percent, null, (v) => `${+(100 * v).toPrecision(2)} %`),
    note(`${percent(now.total.shareRate)} of all updates of users' models came from somebody else's payoff.`),
  ];
}
