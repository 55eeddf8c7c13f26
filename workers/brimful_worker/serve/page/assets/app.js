// The page: what each part shows of the figures.

import { Chart } from "./chart.js";
import { follow, token } from "./feed.js";
import { ago, brief, clock, counted, make, seconds, table, whole } from "./parts.js";

const RATE_S = 10;
const SPANS_S = [180, 300, 600];
const find = (id) => document.getElementById(id);
const page = document.documentElement;
let names = [];
let points = [];
let kept = 900;
let last = null;
let batches = [];

const named = (values) => Object.fromEntries(names.map((name, index) => [name, values[index]]));
const grown = (to, from, name) => Math.max(0, to[name] - from[name]); // it begins at 0 after a restart

const charts = {
  slots: new Chart(find("charts"), { title: "Slots in use", lines: [["", (point) => point.slots]] }),
  starts: new Chart(find("charts"), { title: "Starts in the window", lines: [["", (point) => point.starts]] }),
  waiting: new Chart(find("charts"), { title: "Waiting for a slot",
    lines: [["interactive", (point) => point.interactive], ["batch", (point) => point.batch]] }),
  tokens: new Chart(find("charts"), { title: "Tokens per second", lines: [["", (point) => point.rate]],
    marks: (point) => point.thrown }),
};

function add(point) {
  // Over some seconds: tokens are counted when a request ends, so that single seconds jump.
  let from = points.length - 1;
  while (from > 0 && points[from - 1].at >= point.at - RATE_S) from -= 1;
  const before = points[from];
  const over = before ? point.at - before.at : 0;
  point.rate = over > 0 ? grown(point, before, "spent") / over : 0;
  point.answers = over > 0 ? grown(point, before, "answered") / over : 0;
  point.thrown = points.length > 0 && grown(point, points.at(-1), "throttled") > 0;
  points.push(point);
}

/** How much a counter has grown in the minutes that are kept. */
function lately(name) {
  let sum = 0;
  for (let index = 1; index < points.length; index += 1) sum += grown(points[index], points[index - 1], name);
  return sum;
}

function headline(fleet, door) {
  if (!fleet) return ["bad", "Redis does not answer: these are the last figures"];
  if (door.refusing === "shutting_down") return ["warn", "this front door is shutting down"];
  if (fleet.epoch === null) return ["dim", "no process has used this key yet"];
  if (fleet.rebuilding) return ["warn", "Redis lost its memory: nothing starts until all workers have reported"];
  if (fleet.provider?.state === "key_refused") return ["bad", "the provider refuses the API key"];
  if (fleet.provider?.state === "quota") return ["bad", "the key's quota is at its end"];
  if (fleet.pause_s > 0) return ["warn", `paused for ${seconds(fleet.pause_s)}: ${fleet.pause_reason ?? "no reason given"}`];
  if (fleet.circuit_breaker !== "closed") {
    return ["bad", `circuit breaker ${fleet.circuit_breaker} after ${counted(fleet.failures, "failure")} in a row`];
  }
  return ["good", "running"];
}

function tile(id, name, value, most, note, kind = "") {
  const meter = most ? make("meter", { min: 0, max: most, value: Math.min(value, most), "aria-label": name }) : null;
  const limit = most ? make("span", {}, ` / ${brief(most)}`) : null;
  return make("div", { class: `tile ${kind}`, id }, make("h2", {}, name),
    make("p", {}, make("b", {}, brief(value)), limit), meter, make("small", {}, note));
}

function tiles(fleet) {
  const point = points.at(-1);
  const waiting = fleet.waiting.interactive + fleet.waiting.batch;
  const thrown = lately("throttled");
  const failed = lately("failed");
  const minutes = `in the last ${Math.max(1, Math.round((point.at - points[0].at) / 60))} min`;
  const found = [
    tile("slots", "Slots", fleet.slots_used, fleet.slots, fleet.cooling ? `${fleet.cooling} cool down` : "in use"),
    tile("starts", "Starts", fleet.starts_used, fleet.starts, fleet.next_start_s > 0
      ? `next in ${seconds(fleet.next_start_s)}` : `in ${whole(fleet.window_s)} s`),
    tile("queue", "Waiting", waiting, null, waiting ? `${whole(fleet.waiting.batch)} of them batch` : "nobody"),
    tile("answers", "Answers", point.answers, null, "per second, here"),
    tile("rate", "Tokens", point.rate, null, "per second, here"),
    tile("throttled", "429s", thrown, null, minutes, thrown ? "warn" : ""),
    tile("failed", "Failed", failed, null, minutes, failed ? "bad" : ""),
  ];
  if (fleet.tokens) found.splice(2, 0, tile("tokens", "Tokens", fleet.tokens_used, fleet.tokens, `in ${whole(fleet.window_s)} s`));
  if (fleet.budget) found.splice(2, 0, tile("budget", "Budget", fleet.budget_spent, fleet.budget, "tokens spent"));
  find("tiles").replaceChildren(...found);
}

function plots(fleet, now) {
  const point = points.at(-1);
  const span = SPANS_S.find((each) => each >= now - points[0].at) ?? kept;
  const shared = { points, now, span };
  charts.slots.update({ ...shared, limit: fleet.slots, value: whole(fleet.slots_used) });
  charts.starts.update({ ...shared, limit: fleet.starts, value: whole(fleet.starts_used), legend: `${whole(fleet.window_s)} s` });
  charts.waiting.update({ ...shared, limit: null, value: whole(point.interactive + point.batch),
    legend: fleet.waiting.batch ? "batch on top of interactive" : "" });
  charts.tokens.update({ ...shared, limit: null, value: brief(point.rate),
    legend: points.some((each) => each.thrown) ? "429s are marked below" : "" });
}

function tables(fleet, door, now) {
  table(find("waiting"), "Callers", `of ${door.name}`, [
    ["Caller", (row) => row.caller || "without a token"],
    ["Interactive", (row) => whole(row.interactive), "number"],
    ["Batch", (row) => whole(row.batch), "number"],
    ["Sending", (row) => whole(row.sending), "number minor"],
    ["Answered", (row) => whole(row.answered), "number"],
    ["Failed", (row) => whole(row.failed), "number"],
  ], door.callers, "Nobody has asked yet.");
  const lease = fleet.limits.lease_s || 8; // an idle process sends a command every three quarters of it
  table(find("workers"), "Workers and front doors", whole(fleet.workers.length), [
    ["Name", (row) => row.name],
    ["Holds", (row) => whole(row.held), "number"],
    ["Interactive", (row) => whole(row.interactive), "number"],
    ["Batch", (row) => whole(row.batch), "number"],
    ["Redis", (row) => (row.rtt_ms ? `${row.rtt_ms} ms` : "near"), "number minor"],
    ["Heard", (row) => (row.heard_s > lease ? make("span", { class: "warn" }, ago(row.heard_s)) : "now"), "number"],
  ], fleet.workers, "No process serves this key now.");
  batches = door.batches ?? batches;
  const ofBatches = new Set(batches.map((batch) => batch.run));
  const held = new Set(fleet.runs.filter((run) => run.state === "held").map((run) => run.run));
  const atWorkers = fleet.unacked === null ? "" : `, ${whole(fleet.unacked)} at workers`;
  const queued = Object.values(fleet.queues).reduce((sum, each) => sum + each, 0);
  table(find("runs"), "Runs under way", `${counted(queued, "task")} queued${atWorkers}`, [
    ["Run", (row) => row.run],
    ["State", (row) => row.state ?? "map"],
    ["Weight", (row) => brief(row.weight), "number minor"],
    ["Failed", (row) => (row.failed ? make("span", { class: "bad" }, whole(row.failed)) : "0"), "number"],
    ["Done", (row) => (row.state ? `${whole(row.done)} / ${row.total === null ? "?" : whole(row.total)}` : ""), "number"],
    ["", (row) => ((row.total ?? null) === null ? shardsSeen(row) : doneMeter(row.done + row.failed, row.total))],
  ], fleet.runs.filter((run) => !ofBatches.has(run.run)), "None is under way.");
  table(find("batches"), "Batches", `of ${door.name}`, [
    ["Batch", (row) => make("span", { title: row.id }, row.id.slice(0, 14))],
    ["Caller", (row) => row.caller || "without a token", "minor"],
    ["Status", (row) => (held.has(row.run) ? "held" : row.status.replaceAll("_", " "))],
    ["Failed", (row) => (row.failed ? make("span", { class: "bad" }, whole(row.failed)) : "0"), "number"],
    ["Done", (row) => `${whole(row.completed + row.failed)} / ${whole(row.requests)}`, "number"],
    ["", (row) => doneMeter(row.completed + row.failed, row.requests)],
  ], batches, "None yet.");
  table(find("failures"), "Last failures", `of ${door.name}`, [
    ["When", (row) => make("time", { title: ago(now - row.at) }, clock(row.at))],
    ["Cause", (row) => make("span", { class: "bad" }, row.code.replaceAll("_", " "))],
    ["Status", (row) => String(row.status), "number"],
    ["Caller", (row) => row.caller || "without a token"],
    ["Path", (row) => row.endpoint.replace("/v1/", ""), "minor"],
  ], door.failures.slice(0, 12), "None.");
}

const most = new Map();

/** How much is done, as a bar. */
function doneMeter(done, all, title = `${whole(done)} of ${whole(all)}`) {
  return make("meter", { min: 0, max: all || 1, value: done, "aria-label": "done", title });
}

/** Redis does not know how many shards a map has: those that this page has seen at most. */
function shardsSeen(row) {
  most.set(row.run, Math.max(row.shards, most.get(row.run) ?? 0));
  const all = most.get(row.run);
  return doneMeter(all - row.shards, all, `${all - row.shards} of ${all} shards`);
}

function say(kind, text) {
  const state = find("state");
  state.dataset.kind = kind;
  state.textContent = text;
}

function show(signedIn) {
  find("sign-in").hidden = signedIn;
  document.querySelector("main").hidden = !signedIn;
  find("leave").hidden = !signedIn || !token.get();
}

const again = follow({
  history(said) {
    names = said.names;
    kept = said.kept_s;
    points = [];
    said.points.forEach((values) => add(named(values)));
  },
  now(said) {
    if (said.point && said.point[0] !== points.at(-1)?.at) add(named(said.point));
    while (points.length && points[0].at < said.at - kept) points.shift();
    last = said.fleet ?? last;
    say(...headline(said.fleet, said.door));
    find("when").textContent = clock(said.at);
    show(true);
    if (last && points.length) {
      find("tag").textContent = `key ${last.tag}`;
      document.title = `${last.slots_used}/${last.slots ?? "–"} slots – brimful`;
      tiles(last);
      plots(last, said.at);
      tables(last, said.door, said.at);
    }
    page.dataset.ready = "";
    page.dataset.at = said.at;
  },
  lost(reason) {
    say("bad", `${reason}; trying again`);
  },
  refused(message) {
    find("refused").textContent = token.get() ? message : "";
    token.set("");
    show(false);
    say("dim", "not signed in");
    find("token").focus();
  },
});

find("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(find("token").value.trim());
  find("token").value = "";
  again();
});
find("leave").addEventListener("click", () => {
  token.set("");
  last = null;
  points = [];
  batches = [];
  document.querySelector("main").hidden = true;
  again();
});
