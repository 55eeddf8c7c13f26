// The server's figures as they come. The token goes out as a header, as any client's does: EventSource sends none.

const KEY = "brimful-token";

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (text) => (text ? sessionStorage.setItem(KEY, text) : sessionStorage.removeItem(KEY)),
};

/** Calls on.history, on.now, on.lost(reason) and on.refused(message); returns a function that starts over. */
export function follow(on) {
  let current = null;
  let pause = 500;

  async function run(ending) {
    while (!ending.signal.aborted) {
      try {
        await read(ending.signal);
        on.lost("the front door has ended the connection");
      } catch (error) {
        if (ending.signal.aborted) return;
        if (error.refused) return on.refused(error.message);
        on.lost(error.told ? error.message : "the front door does not answer");
      }
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(2 * pause, 8000);
    }
  }

  async function read(signal) {
    const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
    const answer = await fetch("events", { headers, signal, cache: "no-store", credentials: "omit" });
    if (!answer.ok) {
      const said = await answer.json().then((body) => body.error.message, () => `HTTP ${answer.status}`);
      throw Object.assign(new Error(said), { refused: answer.status === 401, told: true });
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events) {
        const [, name, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) ?? [];
        if (name) on[name](JSON.parse(data));
      }
      pause = 500;
    }
  }

  function again() {
    current?.abort();
    current = new AbortController();
    if (!document.hidden) run(current);
  }

  // A page that nobody sees costs nothing.
  document.addEventListener("visibilitychange", again);
  again();
  return again;
}
