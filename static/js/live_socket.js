// One live socket a tab: subscriptions, reconnecting with full jitter, pausing while hidden.

const RETRY_MIN_S = 0.5;
const RETRY_MAX_S = 30;
const SILENT_S = 12; // beats come every 5 s: silence this long is a lost connection
const HIDDEN_S = 30;
const FATAL = { 4400: "outdated", 4401: "signed out", 4403: "access lost" };
const FULL_CODE = 4429; // six sockets already: wait as long as possible

export class LiveSocket {
  // `changed(state)` hears of every change: {kind, failures, retryAt, why}, with kind one of
  // connecting, open, waiting, ended. Times are those of `performance.now()`.
  constructor(path, changed) {
    this.url = new URL(path, location.href);
    this.url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    this.changed = changed;
    this.subscriptions = new Map();
    this.failures = 0;
    this.offsetS = 0; // server clock minus ours
    this.frameAt = performance.now();
    this.isPaused = false;
    this.hiddenTimer = 0;
    document.addEventListener("visibilitychange", () => this.onVisibility());
    setInterval(() => this.checkSilence(), 1000);
  }

  subscribe(channel, query, handler) {
    const id = this.subscriptions.size + 1;
    this.subscriptions.set(id, { id, channel, query, handler, since: null });
    if (this.isOpen()) this.ask(this.subscriptions.get(id));
  }

  isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  nowS() {
    return Date.now() / 1000 + this.offsetS;
  }

  connect() {
    clearTimeout(this.retryTimer);
    this.frameAt = performance.now();
    this.tell("connecting");
    const socket = new WebSocket(this.url);
    this.socket = socket;
    socket.onopen = () => {
      for (const subscription of this.subscriptions.values()) this.ask(subscription);
      if (this.isPaused) this.send({ t: "pause" });
    };
    socket.onmessage = (event) => this.onFrame(JSON.parse(event.data));
    socket.onclose = (event) => {
      if (socket === this.socket) this.onClose(event);
    };
  }

  ask({ id, channel, query, since }) {
    this.send({ t: "sub", id, ch: channel, q: query, ...(since ? { since } : {}) });
  }

  send(message) {
    if (this.isOpen()) this.socket.send(JSON.stringify(message));
  }

  onFrame(frame) {
    this.frameAt = performance.now();
    if (frame.t === "beat") {
      this.offsetS = frame.ts - Date.now() / 1000;
      this.send({ t: "beat" });
      this.failures = 0;
      this.tell("open");
      return;
    }
    const subscription = this.subscriptions.get(frame.id);
    if (!subscription) return;
    if (frame.t === "snap") subscription.order = frame.order;
    if (frame.t === "snap" || frame.t === "tick") {
      subscription.since = [frame.epoch, frame.seq, subscription.order];
    }
    subscription.handler(frame);
  }

  onClose(event) {
    if (FATAL[event.code]) {
      this.tell("ended", { why: FATAL[event.code] });
      return;
    }
    this.failures += 1;
    let delayS = retryDelayS(this.failures);
    if (event.code === FULL_CODE) delayS = RETRY_MAX_S;
    const asked = Number.parseFloat(event.reason); // a restarting server may name its own delay
    if (event.code === 1012 && asked > 0) delayS = Math.min(asked, RETRY_MAX_S);
    this.retryTimer = setTimeout(() => this.connect(), delayS * 1000);
    this.tell("waiting", { retryAt: performance.now() + delayS * 1000 });
  }

  tell(kind, more = {}) {
    this.changed({ kind, failures: this.failures, ...more });
  }

  checkSilence() {
    if (!this.isOpen() || performance.now() - this.frameAt < SILENT_S * 1000) return;
    const lost = this.socket;
    this.socket = null;
    lost.onmessage = lost.onclose = null;
    lost.close();
    this.onClose({ code: 1006, reason: "" });
  }

  onVisibility() {
    clearTimeout(this.hiddenTimer);
    if (document.hidden) {
      this.hiddenTimer = setTimeout(() => {
        this.isPaused = true;
        this.send({ t: "pause" });
      }, HIDDEN_S * 1000);
    } else if (this.isPaused) {
      this.isPaused = false;
      this.send({ t: "resume" });
    }
  }
}

// Full jitter: many viewers of a restarted console must not come back at once.
function retryDelayS(failures) {
  const ceiling = Math.min(RETRY_MAX_S, RETRY_MIN_S * 2 ** failures);
  return RETRY_MIN_S + Math.random() * (ceiling - RETRY_MIN_S);
}
