// Actions that change the model run one after another. A click while one runs is queued, never lost.

export class Queue {
  // `onChange(count)` gets the number of actions that run or wait; `onError(error)` the failures.
  constructor(onChange, onError) {
    this.onChange = onChange;
    this.onError = onError;
    this.count = 0;
    this.last = Promise.resolve();
  }

  // Resolves to whether the action succeeded; a failure does not stop the actions behind it.
  add(action) {
    this.update(1);
    const done = this.last.then(action).then(() => true, (error) => {
      this.onError(error);
      return false;
    }).finally(() => this.update(-1));
    this.last = done;
    return done;
  }

  update(change) {
    this.count += change;
    this.onChange(this.count);
  }
}
