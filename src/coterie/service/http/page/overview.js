// The overview: what was decided and earned, how many users it rested on, and how fast.
import { ask } from "./ask.js";
import { bars, between, count, el, key, lines, millis, moment, payoff, percent } from "./draw.js";
import { against, guarded, trial } from "./compare.js";
import { card, decisionsTable, figure, live, main, note, redraw, table } from "./parts.js";

let minutes = 60, paused = false;
export const isPaused = () => paused;

const SERIES = [
  { name: "this service", key: "payoff", kind: "ours", range: "payoffInterval" },
  { name: "baseline", key: "baseline", kind: "baseline", range: "baselineInterval" },
  { name: "uniform choice", key: "uniform", kind: "uniform", range: "uniformInterval" },
];
const ARMS = [
  { name: "held back", key: "holdback", kind: "holdback", range: "holdbackInterval" },
  { name: "challenger", key: "challenger", kind: "challenger", range: "challengerInterval" },
];

// What the baseline and a uniform choice earn, and how much better the policy is; shown only if the intervals do not overlap.
function lift(total, name) {
  const theirs = total[name], range = total[`${name}Interval`], ours = total.payoffInterval;
  if (total[`${name}Blind`]) return "cannot be estimated: nothing was left to chance";
  if (!range) return "too few decisions to tell";
  if (theirs === null) return `too few decisions to tell: ${between(range)}`;
  if (!ours || (ours.low <= range.high && range.low <= ours.high) || Math.abs(theirs) < 1e-9) return [between(range), el("br"), "not to be told from ours"];
  const gain = (total.payoff - theirs) / Math.abs(theirs);
  return [between(range), el("br"), "ours is ", el("span", { class: gain >= 0 ? "good" : "bad" }, `${gain >= 0 ? "+" : "−"}${Math.abs(100 * gain).toFixed(0)} %`)];
}

const known = (y) => (y === null ? "unknown" : payoff(y));

export function overview(id, still) {
  const alarm = el("p", { class: "alarm", role: "alert" }), arms = el("div"), figures = el("dl", { class: "figures" }), curve = el("div"), learned = el("div"), shares = el("div"), sizes = el("div"), speed = el("div"), latest = el("div");
  const around = [card("third", "Users a decision rests on", sizes), card("third", "Learned by sharing", shares)];
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
    el("p", { class: "lead" }, "Payoffs against the baseline's, and the latest decisions."),
    alarm,
    figures,
    arms,
    el("div", { class: "grid" },
      el("section", { class: "card" }, el("div", { class: "row" }, el("h2", {}, "Average payoff over time"), el("div", { class: "buttons", role: "group", "aria-label": "Time shown" }, buttons)), curve),
      card("", "The latest decisions, in order", learned),
      ...around,
      card("third", "Latency since the start", speed),
      card("", "Latest decisions", latest)),
  );
  async function refresh() {
    const [now, recent] = await Promise.all([ask(`/v1/statistics?minutes=${minutes}`), ask("/v1/decisions?limit=15")]);
    if (!still()) return;
    const total = now.total;
    const warning = now.warning ? now.warning[0].toUpperCase() + now.warning.slice(1) : "";
    if (alarm.textContent !== warning) alarm.textContent = warning;
    redraw(arms, ...trial(now.trial, now.guardrails.some((rail) => rail.broken)), ...guarded(now));
    redraw(figures,
      against(now),
      figure("Average payoff", payoff(total.payoff), [between(total.payoffInterval), el("br"), `${count(total.learned)} payoffs learned`]),
      figure("The baseline's", known(total.baseline), lift(total, "baseline")),
      figure("A uniform choice's", known(total.uniform), lift(total, "uniform")),
      figure("Decisions", count(total.decisions), `${count(now.waiting)} wait for a reward`),
      figure("Left to chance", total.entropy === null ? "–" : `${total.entropy.toFixed(2)} bits`, now.bestGuessChanges === null ? "a choice, on average" : `${percent(now.bestGuessChanges)} of the best guesses of the last hour changed`),
      ...spent(now.budget),
      figure("Users", count(now.users), el("a", { href: "#/users" }, "see them")),
      figure("Items", count(now.items), el("a", { href: "#/items" }, "see them")));
    redraw(curve, ...payoffs(now.curve));
    redraw(learned, ...learning(recent.learning));
    // A policy without neighbours has neither of these two.
    const alone = recent.decisions.length > 0 && !recent.sizes.length;
    for (const one of around) one.hidden = alone;
    redraw(sizes, ...neighbourhoods(recent));
    redraw(shares, ...sharing(now));
    const { rankLatency: rank, commitLatency: commit } = now;
    redraw(speed,
      bars([["rank, half", rank.p50], ["90 %", rank.p90], ["99 %", rank.p99], ["log, half", commit.p50], ["90 %", commit.p90], ["99 %", commit.p99]].filter(([, s]) => s !== null).map(([name, s]) => ({ name, value: s, text: millis(s) })), "Latency"),
      note(rank.calls ? `${count(rank.calls)} rank calls over HTTP and ${count(commit.calls)} commits to the log: within how long they were done.` : `${count(commit.calls)} commits to the log, within how long they were done. No rank calls came over HTTP yet.`),
      note(`This service's state is ${millis(now.behind)} behind the log.`));
    redraw(latest, decisionsTable(recent.decisions, true));
    live.textContent = `${now.policy}, ${now.mode}, ${now.mode === "online" ? `${percent(now.exploration)} by chance` : "the baseline is shown"}`;
  }
  return refresh;
}

// What was spent of a budget, beside what may be spent.
function spent(budget) {
  if (!budget) return [];
  const each = budget.per === "decision";
  const said = each ? budget.spent / Math.max(1, budget.decisions) : budget.spent;
  const allowed = each ? `of ${amount(budget.amount)} a decision` : `${amount(budget.left)} left of ${amount(budget.amount)} ${budget.per === "day" ? "today" : "in total"}`;
  return [figure("Spent", amount(said), [allowed, el("br"), budget.price ? `now a cost of 1 counts as a payoff of −${amount(budget.price)}` : "costs do not matter now: the budget allows the best"])];
}

const amount = (number) => (number >= 1000 ? count(Math.round(number)) : String(Number(number.toPrecision(3))));

function payoffs(points) {
  if (!points.length) return [el("p", { class: "empty" }, "Nothing was learned in this time.")];
  const series = [...SERIES, ...ARMS.filter((s) => points.some((p) => p[s.key] !== null))];
  const said = (p, s) => (p[s.key] === null ? (s.kind === "ours" ? "–" : "unknown") : `${payoff(p[s.key])} (${between(p[s.range])})`);
  const values = series.map((s) => el("b", {}, said(points[points.length - 1], s)));
  const when = el("span", {}, "latest");
  const told = (p) => {
    const shown = p || points[points.length - 1];
    series.forEach((s, k) => { values[k].textContent = said(shown, s); });
    when.textContent = p ? moment(p.start) : "latest";
  };
  const legend = el("ul", { class: "legend" }, series.map((s, k) => el("li", {}, key(s.kind), `${s.name} `, values[k])), el("li", {}, when));
  const rows = points.slice(-30).reverse().map((p) => ({ cells: [moment(p.start), count(p.decisions), ...series.map((s) => said(p, s))] }));
  return [
    legend,
    lines(points, series, "Average payoff over time", payoff, told),
    note(`The click rate, where a reward is a click. The shaded ranges hold the true average in about 19 of 20 cases. What the baseline and a uniform choice would have earned is estimated by inverse propensity, mostly from the few decisions made by chance: the latest points are worth about ${count(Math.round(points[points.length - 1].baselineWorth))} and ${count(Math.round(points[points.length - 1].uniformWorth))} decisions. Where nothing was left to chance, it is unknown.`),
    el("details", {}, el("summary", {}, "As a table"), table([["From"], ["Decisions", "number"], ...series.map((s) => [s.name, "number"])], rows, "", "Average payoff over time")),
  ];
}

// Per decision, so that a new loop shows what it learns within its first minutes.
function learning(stretches) {
  if (!stretches.length) return [el("p", { class: "empty" }, "Fewer than 50 decisions have a reward yet.")];
  return [
    lines(stretches, [SERIES[0]].map((s) => ({ ...s, key: "payoff" })), "Average payoff of the latest decisions", payoff, null),
    note(`Each point is ${count(stretches[0].decisions)} decisions with what they earned; users in the holdback and in the challenger's arm are left out.`),
  ];
}

function neighbourhoods(recent) {
  if (!recent.sizes.length) return [el("p", { class: "empty" }, "No decisions yet.")];
  const rows = recent.sizes.map((s) => ({ name: s.least === s.most ? String(s.least) : `${s.least}–${s.most}`, value: s.decisions, text: count(s.decisions) }));
  return [bars(rows, "Neighbourhood sizes"), note(`Half of the latest decisions rested on ${count(recent.median)} ${recent.median === 1 ? "user" : "users"} or more.`)];
}

function sharing(now) {
  const points = now.curve.filter((p) => p.shareRate !== null);
  if (!points.length) return [el("p", { class: "empty" }, "Nothing was learned yet.")];
  return [
    lines(points, [{ name: "share rate", key: "shareRate", kind: "ours" }], "Share rate over time", percent, null, (v) => `${+(100 * v).toPrecision(2)} %`),
    note(`${percent(now.total.shareRate)} of all updates of users' models came from somebody else's payoff.`),
  ];
}
