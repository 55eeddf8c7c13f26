// client.py's "rounds" for Bottleneck, clustered through Redis as its README shows: the same specification in, "ready",
// "go" and the same JSON out. Times are CLOCK_MONOTONIC seconds, as in the Python clients. NODE_PATH holds the packages.
const Bottleneck = require("bottleneck");
const Redis = require("ioredis");

const spec = JSON.parse(process.argv[2]);
const now = () => Number(process.hrtime.bigint()) / 1e9;
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
let commands = 0;
const send = Redis.prototype.sendCommand;
Redis.prototype.sendCommand = function (...args) {
  commands += 1;
  return send.apply(this, args);
};

function newLimiter(id, starts, window_s) {
  const { hostname, port } = new URL(spec.url);
  const reservoir = starts
    ? {
        reservoir: starts,
        reservoirRefreshAmount: starts,
        reservoirRefreshInterval: window_s * 1000,
      }
    : {};
  return new Bottleneck({
    id,
    datastore: "ioredis",
    clientOptions: { host: hostname, port: Number(port) },
    maxConcurrent: spec.slots || null,
    heartbeatInterval: 250, // by default 5 s, and the reservoir of a cluster is refilled by it
    Redis,
    ...reservoir,
  });
}

async function main() {
  // Several windows are a chain. The longest comes first: what it lets through at once waits for the shorter ones.
  const windows = spec.windows?.length ? spec.windows : [[spec.starts, spec.window_s]];
  const chain = [...windows]
    .sort((one, other) => other[1] - one[1])
    .map(([starts, window_s]) => newLimiter(`bench ${window_s}`, starts, window_s));
  chain.slice(1).forEach((next, place) => chain[place].chain(next));
  const limiter = chain[0];
  await Promise.all(chain.map((one) => one.ready()));
  console.log("ready");
  await new Promise((resolve) => process.stdin.once("data", resolve));

  const events = [];
  const before = commands;
  const end = spec.seconds === undefined ? Infinity : now() + spec.seconds;
  let errors = 0;
  let firstError = "";
  let unfinished = spec.coroutines;
  async function work() {
    for (let left = spec.rounds ?? Infinity; left > 0 && now() < end; ) {
      const asked = now();
      try {
        await limiter.schedule(async () => {
          const entered = now();
          await pause(spec.hold_s * (1 + (spec.spread ?? 0) * (2 * Math.random() - 1)));
          events.push([asked, entered, now()]);
        });
        left -= 1;
      } catch (error) {
        errors += 1;
        firstError ||= String(error).slice(0, 200);
        await pause(0.1);
      }
    }
    unfinished -= 1;
  }
  const workers = Array.from({ length: spec.coroutines }, work);
  await Promise.race([Promise.all(workers), pause(spec.bound_s)]);
  const result = { events, commands: commands - before, errors, first_error: firstError, unfinished };
  process.stdout.write(JSON.stringify(result) + "\n", () => process.exit(0));
}

main();
