// Cards: each sends one request through a queue, three at a time, and shows its own answer or error.

import { alarm, copy, fillTimes, pause, Problem, say, unbroken } from "./common.js";

const PARALLEL = 3;
const SPINNER_MS = 300;
const SLOW_MS = 3000;
const BUSY_TRIES = 20;

export const cardOf = new WeakMap();

/** One request. Subclasses have `send(signal)`, which returns an answer, and `done(answer)`. */
export class Card {
  verb = "Working";

  constructor(queue, name) {
    this.queue = queue;
    this.panel = queue.panel;
    this.name = name;
    this.element = this.panel.$("card-template").content.firstElementChild.cloneNode(true);
    this.element.tabIndex = -1;
    cardOf.set(this.element, this);
    this.find(".card-name").textContent = name;
    this.show("queued", "Waiting for its turn", "", ["cancel"]);
  }

  find(selector) { return this.element.querySelector(selector); }

  button(action) { return this.find(`[data-do="${action}"]`); }

  show(state, sentence, note, actions) {
    this.state = this.element.dataset.state = state;
    this.element.classList.remove("spinning");
    this.find(".card-sentence").replaceChildren(...unbroken(sentence));
    this.find(".card-note").textContent = note;
    this.offer(actions);
  }

  /** Shows these buttons only; keeps the focus in the card when its button disappears. */
  offer(actions) {
    for (const action of ["cancel", "retry"]) {
      const button = this.button(action);
      const hide = !actions.includes(action);
      if (hide && button === document.activeElement) this.element.focus({ preventScroll: true });
      button.hidden = hide;
    }
  }

  /** Shows that the request is under way, before there is anything to say. */
  begin() { this.show("working", "\u00a0", "", []); }

  /** Takes the card from the queue to an answer, a failure, or waiting for the service. */
  async work() {
    this.abort = new AbortController();
    this.begin();
    const spin = setTimeout(() => this.spin(`${this.verb}…`), SPINNER_MS);
    const slow = setTimeout(() => this.spin("Still working…"), SLOW_MS);
    try {
      await this.prepare();
      this.done(await this.ask());
      if (this.panel.state === "asleep") this.panel.look();
    } catch (problem) {
      if (!this.removed) this.failed(problem);
    } finally {
      clearTimeout(spin);
      clearTimeout(slow);
    }
  }

  async prepare() {}

  spin(text) {
    if (this.state !== "working") return;
    this.show("working", text, "", ["cancel"]);
    this.element.classList.add("spinning");
  }

  /** Asks, and asks again while the service is busy. */
  async ask() {
    for (let tries = 1; ; tries += 1) {
      this.abort.signal.throwIfAborted();
      try {
        return await this.send(this.abort.signal);
      } catch (problem) {
        if (!problem.retryAfter || tries >= BUSY_TRIES) throw problem;
        await this.countDown(problem.retryAfter);
        this.spin(`${this.verb}…`);
      }
    }
  }

  async countDown(seconds) {
    const text = (left) => `Busy, trying again in ${left} s`;
    this.show("waiting", text(seconds), "", ["cancel"]);
    this.say(text(seconds));
    for (let left = seconds; left > 0; left -= 1) {
      this.find(".card-sentence").textContent = text(left);
      await pause(1000, this.abort.signal);
    }
    this.state = this.element.dataset.state = "working";
  }

  failed(problem) {
    if (problem.name === "AbortError") {
      this.show("cancelled", "Cancelled", "", ["retry"]);
      this.say("cancelled");
    } else if (problem.waits) {
      const note = `${this.panel.config.stays} and will be sent automatically.`;
      this.show("waiting", problem.title, note, ["retry", "cancel"]);
      this.panel.lost(problem.waits);
    } else {
      if (!(problem instanceof Problem)) console.error(problem);
      const { title = "Something went wrong on this page.", advice = "Try again." } = problem;
      this.show("failed", title, advice, problem.final ? [] : ["retry"]);
      alarm(`${this.name}: ${title} ${advice}`);
    }
  }

  say(text) { say(`${this.name}: ${text}`); }

  fillTimes(times) { fillTimes(this.find(".times"), this.find(".times-legend"), times); }

  cancel() {
    this.queue.drop(this);
    if (this.queue.working.has(this)) this.abort.abort();
    else this.failed(new DOMException("", "AbortError"));
  }

  again() {
    if (this.panel.state !== "ready") this.panel.look();
    this.show("queued", "Waiting for its turn", "", ["cancel"]);
    this.queue.drop(this);
    if (!this.queue.working.has(this)) this.queue.start(this);
  }

  /** Ends the request without a word. */
  remove() {
    this.removed = true;
    this.queue.drop(this);
    this.abort?.abort();
    this.element.remove();
  }
}

// ---- The queue -------------------------------------------------------------------------------

/** The cards of a panel, and those among them that wait for their turn. */
export class Queue {
  cards = []; // newest group first, as on the page
  waiting = [];
  working = new Set();

  constructor(panel) {
    this.panel = panel;
    panel.queue = this;
  }

  add(card) {
    if (!this.waiting.includes(card)) this.waiting.push(card);
    this.pump();
    if (this.panel.closed()) {
      const title = this.panel.$("service-text").textContent;
      card.show("waiting", title, `${this.panel.config.stays}.`, ["retry", "cancel"]);
    }
  }

  drop(card) { this.waiting = this.waiting.filter((other) => other !== card); }

  pump() {
    const closed = this.panel.closed();
    while (!closed && this.waiting.length && this.working.size < PARALLEL) {
      this.start(this.waiting.shift());
    }
  }

  start(card) {
    this.working.add(card);
    card.work().finally(() => {
      this.working.delete(card);
      this.pump();
    });
  }

  /** Adds the cards that waited for the service to the queue; called when it is ready. */
  resume() {
    for (const card of this.cards) {
      if (card.state === "waiting" && !this.working.has(card)) this.add(card);
    }
    this.pump();
  }

  /** Shows the cards' part of the panel as long as there are any. */
  refresh() {
    const { length } = this.cards;
    this.panel.$("results").hidden = !length;
    this.panel.$("results-title").textContent = length > 1 ? "Answers" : "Answer";
    this.panel.element.classList.toggle("busy-page", length > 0);
  }

  /** Removes all cards. */
  clear() {
    this.cards.splice(0).forEach((card) => card.remove());
    this.panel.$("cards").replaceChildren();
  }

  /** Listens to the buttons of all cards; `more` are actions beside those that every card has. */
  listen(more = {}) {
    const actions = {
      cancel: (card) => card.cancel(),
      retry: (card) => card.again(),
      copy: (_, button) => copy(button),
      ...more,
    };
    this.panel.$("cards").addEventListener("click", (event) => {
      const button = event.target.closest("[data-do]");
      const card = button && cardOf.get(button.closest(".card"));
      if (card) actions[button.dataset.do](card, button);
    });
  }
}

export const isOpen = (card) => !["done", "failed", "cancelled"].includes(card.state);

/** Scrolls to a part of the page where it is not in view. */
export function reveal(part) {
  part.scrollIntoView({
    block: "nearest",
    behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
  });
}

// ---- CSV -------------------------------------------------------------------------------------

export const RANKED = [
  "state", "prediction", "probability", "second", "second_probability", "sentence",
];

/** Returns the cells of RANKED. */
export function ranked({ state, result, element }) {
  const { top = [result?.answer] } = result?.answer ?? {};
  const best = state === "done" ? top.slice(0, 2) : [];
  const pairs = [0, 1].flatMap((i) => [
    best[i]?.label ?? best[i]?.prediction ?? "", best[i]?.probability ?? "",
  ]);
  return [state, ...pairs, element.querySelector(".card-sentence").textContent];
}
