// What the views that are filled in share: what is typed is kept and counted, and cards ask with it.

import { alarm, post } from "./common.js";
import { Card, isOpen, Queue, reveal } from "./cards.js";

const foldInFocus = () => document.activeElement.closest("details");
const number = (count) => count.toLocaleString("en");

/** Answer to one filled-in form; `before` is a card whose answer stays until there is a new one. */
export class AskCard extends Card {
  constructor(queue, name, content, before) {
    super(queue, name);
    this.content = content;
    this.html = before?.html;
    if (!this.html) return;
    this.fill(before.find(".card-answer"));
    this.show("queued", before.find(".card-sentence").textContent, "", []);
    this.element.dataset.stale = "";
  }

  begin() {
    if (this.html) this.state = this.element.dataset.state = "working";
    else super.begin();
  }

  send(signal) { return post(`ask${this.panel.config.query}`, this.content, {}, signal); }

  /** Shows the answer; its HTML comes from the server's templates, which escape it. */
  done({ answer, page, times, requestId }) {
    this.result = answer;
    this.html = page.html;
    this.show("done", page.sentence, page.note, []);
    this.element.toggleAttribute("data-unsure", !page.sure);
    this.fill();
    this.fillTimes(times);
    this.find(".request").textContent = `Request ${requestId}.`;
    this.announce(page.sentence);
  }

  /** Fills in the answer; what is unfolded in the one before it stays unfolded, and keeps the focus. */
  fill(before = this.find(".card-answer")) {
    const focused = foldInFocus();
    const folds = [...before.querySelectorAll("details")];
    const answer = this.find(".card-answer");
    answer.innerHTML = this.html;
    for (const old of folds) {
      const fold = answer.querySelector(`details.${old.className}`);
      if (!fold) continue;
      fold.open = old.open;
      if (old === focused) this.focusFold(old);
    }
  }

  /** Focuses the fold that takes the place of another card's, or of its own before it was filled in. */
  focusFold(old) {
    this.find(`details.${old.className} summary`)?.focus({ preventScroll: true });
  }

  announce(sentence) { this.say(sentence); }

  show(state, ...rest) {
    super.show(state, ...rest);
    if (!isOpen(this)) delete this.element.dataset.stale;
  }
}

/** The form of a panel, and the cards of what it asks. */
export class Asking extends Queue {
  constructor(panel) {
    super(panel);
    const { view, name } = panel.config;
    this.form = panel.$("ask");
    this.fields = [...this.form.querySelectorAll("[name]")];
    this.kept = `typed ${view} ${name}`;
  }

  /** Shows a card above the others, and asks. */
  ask(card) {
    this.cards.unshift(card);
    this.panel.$("cards").prepend(card.element);
    this.refresh();
    alarm("");
    this.add(card);
    reveal(card.element);
  }

  /** Puts a card in a place among the others; the one that it replaces ends. */
  put(card, place) {
    const before = this.cards[place];
    this.cards[place] = card;
    if (!before) {
      this.panel.$("cards").append(card.element);
      return;
    }
    const focused = foldInFocus();
    const had = before.element.contains(focused);
    before.element.replaceWith(card.element);
    if (had) card.focusFold(focused);
    before.remove();
  }

  /** Listens to the cards, and to the button that removes them. */
  listen(cleared = () => {}) {
    super.listen();
    this.panel.$("clear-results").addEventListener("click", () => {
      this.clear();
      cleared();
      this.refresh();
      this.fields[0].focus({ preventScroll: true });
    });
  }

  /**
   * Restores what was typed in this tab of the browser, except files. What was typed while this script
   * was loading takes precedence, and is kept from now on.
   */
  restore() {
    let kept = {};
    try {
      kept = JSON.parse(sessionStorage.getItem(this.kept)) ?? {};
    } catch { /* it starts anew */ }
    for (const field of this.fields) {
      const value = kept[field.name];
      if (value === undefined || field.type === "file" || isTyped(field)) continue;
      if (field.type === "checkbox") field.checked = value;
      else field.value = value;
    }
    this.fields.forEach((field) => this.count(field));
    if (this.fields.some(isTyped)) this.keep();
    this.form.addEventListener("input", ({ target }) => {
      this.count(target);
      this.keep();
    });
  }

  /** Keeps what is typed. */
  keep() {
    const values = this.fields.filter(({ type }) => type !== "file").map((field) =>
      [field.name, field.type === "checkbox" ? field.checked : field.value]);
    try {
      sessionStorage.setItem(this.kept, JSON.stringify(Object.fromEntries(values)));
    } catch {
      sessionStorage.removeItem(this.kept); // full
    }
  }

  /** Shows how much of its limit a field has, and what is wrong with it. */
  count(field) {
    const shown = this.panel.$(field.id.replace("field-", "count-"));
    if (!shown?.classList.contains("count")) return;
    shown.dataset.empty ??= shown.textContent;
    const { most, unit = "characters", lines } = field.dataset;
    const texts = lines === undefined ? [field.value] : linesOf(field.value);
    const longest = texts.reduce((a, b) => (b.length > a.length ? b : a), "");
    const wrong = texts.map((text) => wrongWith(field, text)).find(Boolean) ?? "";
    const each = texts.length > 1 ? `${number(texts.length)} texts, the longest: ` : "";
    const size = sizes[unit](longest);
    const unsaid = !most || (field.rows === 1 && 2 * size < most);
    const text = `${each}${number(size)} of ${number(Number(most))} ${unit}`;
    shown.textContent = wrong || (size && !unsaid ? text : shown.dataset.empty);
    shown.classList.toggle("bad", Boolean(wrong));
    if (wrong && !field.validationMessage) alarm(wrong);
    field.ariaInvalid = wrong ? "true" : null;
    if (lines === undefined) field.setCustomValidity(wrong);
  }
}

/** Tells whether a field has changed since the page arrived; always false for a list. */
const isTyped = ({ type, checked, defaultChecked, value, defaultValue = value }) =>
  (type === "checkbox" ? checked !== defaultChecked : type !== "file" && value !== defaultValue);

// ---- Limits ----------------------------------------------------------------------------------

const sizes = {
  characters: (text) => [...text].length, // code points, as the service counts them
  bytes: (text) => new TextEncoder().encode(text).length,
};

/** Returns what is wrong with a text in this field, in words; nothing if it can be sent. */
export function wrongWith(field, text) {
  const { most, unit = "characters" } = field.dataset;
  const size = sizes[unit](text);
  if (/\p{Surrogate}/u.test(text)) {
    return "It contains an incomplete character. Delete and retype it.";
  }
  return most && size > most ? `It has ${number(size)} ${unit}. The limit is ${number(Number(most))}.` : "";
}

export const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
