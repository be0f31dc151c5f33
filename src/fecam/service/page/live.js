// Answers while somebody draws, types or moves the camera: one request under way at a time.

const INTERVAL = 250; // ms between the starts of two requests: at most four per second
const PAUSE = 2000; // ms after a failure

const sleep = (duration) => new Promise((resolve) => { setTimeout(resolve, duration); });

export class Live {
  // `current()` returns an example or null, `ask(example)` resolves to its answer.
  constructor({ current, ask, show, hide }) {
    Object.assign(this, { current, ask, show, hide });
    this.dirty = false;
    this.running = false;
    this.generation = 0;
  }

  // The input has changed. An answer to an earlier state is shown until the next one arrives.
  changed() {
    this.dirty = true;
    if (!this.running) this.run();
  }

  // The input was taken away: an answer that is still under way is not shown.
  clear() {
    this.generation += 1;
    this.hide();
    this.changed();
  }

  async run() {
    this.running = true;
    while (this.dirty) {
      this.dirty = false;
      const example = document.hidden ? null : this.current();
      if (example === null) {
        this.hide();
        continue;
      }
      const { generation } = this;
      const next = performance.now() + INTERVAL;
      let pause = 0;
      try {
        const answer = await this.ask(example);
        if (generation === this.generation) this.show(example, answer);
      } catch {
        pause = PAUSE; // the banner shows that the server does not respond
      }
      await sleep(Math.max(pause, next - performance.now()));
    }
    this.running = false;
  }
}
