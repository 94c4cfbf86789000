// The view for texts: each line is classified as one stops typing, and has its own card.

import { alarm, complain, Problem, say, saveCsv } from "./common.js";
import { isOpen, RANKED, ranked } from "./cards.js";
import { AskCard, Asking, linesOf, wrongWith } from "./asking.js";

const TYPED_MS = 300;
const MOST_LINES = 200;
const MOST_KNOWN = 1000;

class TextCard extends AskCard {
  verb = "Classifying";

  constructor(texts, line, more, before) {
    const content = new FormData(texts.form);
    content.set("text", line);
    super(texts, line, content, before);
    this.key = keyOf(line, more);
  }

  async prepare() {
    const wrong = wrongWith(this.queue.field, this.name);
    if (wrong) throw new Problem("This text cannot be sent.", wrong, { final: true });
  }

  done(answered) {
    super.done(answered);
    this.queue.remember(this.key, answered);
  }

  announce(sentence) {
    const { cards } = this.queue;
    if (cards.some(isOpen)) return;
    say(cards.length > 1 ? `${cards.length} texts classified` : sentence);
  }
}

const keyOf = (line, more) => JSON.stringify([line, more]);

/** The texts of a panel. */
class Texts extends Asking {
  known = new Map(); // answers by what was asked, so that only new lines are asked

  constructor(panel) {
    super(panel);
    this.field = this.form.elements.text;
  }

  remember(key, answered) {
    if (this.known.size >= MOST_KNOWN) this.known.clear();
    this.known.set(key, answered);
  }

  refresh() {
    super.refresh();
    this.panel.$("csv").hidden = this.cards.length < 2;
  }

  /** Returns what is filled in beside the text, which is part of every request. */
  others() { return [...new FormData(this.form)].filter(([name]) => name !== "text"); }

  /** Makes the cards those of the lines; a line that has changed keeps its place. */
  classify() {
    const { cards } = this;
    const all = linesOf(this.field.value);
    const lines = all.slice(0, MOST_LINES);
    const more = this.others();
    alarm("");
    this.panel.element.querySelector(".problem")?.remove();
    if (all.length > lines.length) {
      const problem = new Problem(
        `Only the first ${MOST_LINES} lines are classified.`, "Classify the others afterwards.",
      );
      complain(problem, this.panel.element);
    }
    cards.splice(lines.length).forEach((card) => card.remove());
    const fresh = [];
    lines.forEach((line, place) => {
      const before = cards[place];
      if (before?.key === keyOf(line, more)) return;
      const card = new TextCard(this, line, more, before);
      this.put(card, place);
      fresh.push(card);
    });
    this.refresh();
    for (const card of fresh) {
      if (this.known.has(card.key)) card.done(this.known.get(card.key));
      else this.add(card);
    }
  }
}

export function start(panel) {
  const texts = new Texts(panel);
  const { field, form } = texts;
  let timer = 0;

  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => texts.classify(), TYPED_MS);
  });
  field.addEventListener("keydown", ({ key }) => {
    if (key === "Enter") setTimeout(() => texts.classify()); // when the line is in the field
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  panel.element.querySelector(".sentences")?.addEventListener("submit", (event) => {
    event.preventDefault();
    field.value = event.submitter.value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    texts.classify();
  });
  panel.$("csv").addEventListener("click", () => {
    const rows = texts.cards.map((card) => [card.name, ...ranked(card)]);
    saveCsv(["text", ...RANKED], rows, `${panel.config.name || "texts"}.csv`);
  });
  texts.listen(() => {
    field.value = "";
    texts.keep();
  });
  texts.restore();
  if (field.value) texts.classify();
}
