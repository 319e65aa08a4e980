// The policy against the baseline: the most important figure, so it comes first.
import { between, count, el, moment, payoff, percent } from "./draw.js";
import { card, figure, note, table } from "./parts.js";

const NAMES = { champion: "this service", holdback: "held back", challenger: "challenger" };
const signed = (y, show) => (y === null ? "–" : `${y >= 0 ? "+" : "−"}${show(Math.abs(y))}`);
const short = (y) => (y === null ? "–" : String(+y.toPrecision(4)).replace("-", "−"));
const FAR = 10; // times the other arm: beyond it a relative range says nothing, and the plain one is shown
const told = (found) => Boolean(found?.relativeInterval) && found.relativeInterval.high < FAR;
const tone = (verdict) => ({ better: "good", worse: "bad" })[verdict];

// The first figure: measured on held-back users if there are any, else estimated; in apprentice mode, predicted.
export function against(now) {
  const lift = now.trial?.lifts.find((one) => one.arm === "champion" && one.against === "holdback");
  if (now.mode !== "online") return foretold(now.total);
  return lift ? measured(lift, now.trial) : estimated(now.total);
}

function measured(lift, trial) {
  const found = lift.difference, title = "Against those held back";
  if (!found) return figure(title, "unknown", "no payoffs of both yet");
  const held = trial.arms.find((arm) => arm.name === "holdback");
  const value = told(found) ? signed(found.relative, percent) : signed(found.value, payoff);
  return figure(title, el("span", { class: tone(lift.verdict) }, value), [
    told(found) ? percents(found.relativeInterval) : range(found.interval), el("br"),
    { unclear: `not clear yet: ${count(held.users)} users held back`, alike: `no difference that matters, on ${count(held.users)} users held back` }[lift.verdict]
      ?? `measured on ${count(held.users)} users held back`,
  ]);
}

function estimated(total) {
  const title = "Against the baseline", ours = total.payoffInterval, theirs = total.baselineInterval;
  if (total.payoff === null || total.baseline === null || !ours || !theirs) return figure(title, "unknown", "hold a share of the users back to measure it");
  const clear = ours.low > theirs.high || theirs.low > ours.high, gain = total.payoff - total.baseline;
  const value = total.baseline > 1e-9 ? signed(gain / total.baseline, percent) : signed(gain, payoff);
  return figure(title, el("span", { class: clear ? tone(gain > 0 ? "better" : "worse") : null }, value), clear ? "estimated from decisions by chance" : "estimated; not to be told apart yet");
}

function foretold(total) {
  const range = total.wouldEarnInterval;
  return figure("We would have agreed", percent(total.agreement), [
    total.wouldEarn === null ? "what we would earn is unknown" : `we would earn about ${payoff(total.wouldEarn)}`,
    range ? [el("br"), between(range)] : null,
  ]);
}

const range = ({ low, high }, show = payoff) => `${signed(low, show)} to ${signed(high, show)}`;
const percents = (found) => range(found, percent);

export function trial(found, stopped) {
  if (!found) return [];
  const rows = found.arms.map((arm) => ({ cells: [NAMES[arm.name], arm.policy, percent(arm.share), count(arm.users), count(arm.learned), payoff(arm.payoff), between(arm.interval)] }));
  const lifts = found.lifts.map((lift) => ({ cells: [
    `${NAMES[lift.arm]} against ${NAMES[lift.against]}`,
    lift.difference ? signed(lift.difference.value, payoff) : "unknown",
    lift.difference ? range(lift.difference.interval) : "–",
    told(lift.difference) ? `${signed(lift.difference.relative, percent)} (${percents(lift.difference.relativeInterval)})` : "–",
    el("span", { class: tone(lift.verdict) }, lift.verdict),
    stopped ? "stopped" : left(lift),
  ] }));
  return [el("div", { class: "grid" }, card("", "Measured on users assigned by chance",
    table([["Arm", "id"], ["Policy", "id"], ["Share", "number"], ["Users", "number"], ["Payoffs", "number"], ["Average", "number"], ["Range", "number"]], rows, "", "Arms"),
    table([["Lift", "id"], ["Difference", "number"], ["Range", "number"], ["Relative", "number"], ["Verdict", ""], ["Still needed", ""]], lifts, "", "Lifts"),
    note(`Since ${moment(found.since)}. A user stays in one arm, and ranges take the payoffs of one user together. The ranges of the lifts hold for all looks together, so you may look as often as you like and stop at the first verdict. "Alike" means that any difference is smaller than the smallest that matters.${stopped ? " A broken guardrail stopped the trial: its figures do not change any more." : ""}`)))];
}

// The named parts of the rewards, and the guardrails on them.
export function guarded(now) {
  if (!now.parts.length && !now.guardrails.length) return [];
  const arms = Object.keys(NAMES).filter((arm) => now.parts.some((part) => part.arms[arm]));
  const parts = now.parts.map((part) => ({ cells: [part.name, part.weight === null ? "–" : String(part.weight), count(part.count), short(part.mean), ...arms.map((arm) => (part.arms[arm] ? `${short(part.arms[arm].mean)} of ${count(part.arms[arm].count)}` : "–"))] }));
  const rails = now.guardrails.map((rail) => ({ cells: [
    rail.part, rail.most === null ? `at least ${short(rail.least)}` : `at most ${short(rail.most)}`, rail.arm ? NAMES[rail.arm] : rail.scope, count(rail.users), short(rail.mean),
    rail.interval ? `${short(rail.interval.low)} to ${short(rail.interval.high)}` : "too few users",
    rail.broken ? el("span", { class: "bad" }, `broken since ${moment(rail.broken.at)}`) : "holds",
  ] }));
  return [el("div", { class: "grid" }, card("", "Parts of the rewards",
    table([["Part", "id"], ["Weight", "number"], ["Rewards", "number"], ["Average", "number"], ...arms.map((arm) => [NAMES[arm], "number"])], parts, "No reward had a part yet.", "Parts"),
    rails.length ? [table([["Guardrail", "id"], ["Bound", ""], ["For", ""], ["Users", "number"], ["Average", "number"], ["Range", "number"], ["State", ""]], rails, "", "Guardrails"),
      note("A guardrail is broken when its whole range is beyond the bound. The ranges hold for all looks together. What a broken guardrail stopped goes on once the guardrails are changed.")] : null))];
}

// How long until the smallest difference that matters would be named, at the rate of payoffs so far.
function left(lift) {
  if (lift.verdict !== "unclear") return "may stop";
  if (lift.remaining === null) return "unknown";
  const hours = lift.remaining / 3600;
  return hours < 48 ? `about ${count(Math.ceil(hours))} h` : `about ${count(Math.ceil(hours / 24))} days`;
}
