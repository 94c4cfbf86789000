// A panel: the part of the page that belongs to one model, and what is known of that model's state.

import { alarm, Problem, request, say } from "./common.js";

const LOST_MS = 1000;

/** Only the panel that is shown is in the document: all have the same ids. */
export class Panel {
  state = "unknown";
  model = null;
  queue = null; // of its cards, see cards.js

  onModel() {} // what a view does with a model

  /** `look(ms)` asks for the models' states, after so many milliseconds. */
  constructor(element, look) {
    this.element = element;
    this.config = element.dataset;
    this.look = look;
  }

  /** Fetches a panel. Throws Problem. */
  static async from(address, look) {
    const text = await (await request(address, {})).text();
    const element = new DOMParser().parseFromString(text, "text/html").getElementById("page");
    if (!element) throw new Problem("This tab cannot be opened.", "Try again in a moment.");
    return new Panel(document.adoptNode(element), look);
  }

  $(id) { return this.element.querySelector(`[id="${id}"]`); }

  get isShown() { return this.element.isConnected; }

  closed() { return ["loading", "unavailable", "down", "offline"].includes(this.state); }

  /** Starts its view, once. */
  async start() {
    const { view, script } = this.config;
    if (this.started || view === "waiting") return;
    const { start } = await import(`./${script}.js`);
    if (!this.started) start(this);
    this.started = true;
  }

  /** Keeps the model; returns whether the panel is made for it. */
  learn(model) {
    const { view, shape } = this.config;
    if (model.view === "waiting" && view !== "waiting") return true; // it will be described again
    this.model = model;
    const fits = !model.view || (view === "photos" ? model.view === view : model.shape === shape);
    if (fits) this.onModel(model);
    return fits;
  }

  /** Shows the state that a card has found, and asks again soon. */
  lost(state) {
    this.show(state);
    this.look(LOST_MS);
  }

  /** Shows a state; `reason` is a sentence about a model that is asleep. */
  show(state, reason) {
    const { goes } = this.config;
    const before = this.state;
    const wasClosed = this.closed();
    const text = {
      ready: "Ready",
      asleep: reason || "Asleep: the first answer takes longer.",
      loading: `The model is loading. ${goes} as soon as it is ready.`,
      unavailable: "The model is not available. This page keeps checking.",
      down: "The model cannot be reached. This page keeps checking.",
      offline: navigator.onLine
        ? "This page's server is not responding. This page keeps checking."
        : `You are offline. ${goes} when you are back online.`,
    }[state];
    this.state = this.$("service").dataset.state = state;
    this.$("service").hidden = false;
    this.$("service-text").textContent = text;
    if (!this.closed()) {
      if (wasClosed && this.isShown) {
        say("The model is ready.");
        alarm("");
      }
      this.queue?.resume();
    } else if (before !== state && this.isShown) {
      alarm(text);
    }
  }
}
