// The view whose one answer follows what is typed: embeddings, ranking, entities, zero-shot.

import { alarm, say } from "./common.js";
import { AskCard, Asking, linesOf } from "./asking.js";

const TYPED_MS = 300;

class LiveCard extends AskCard {
  say(text) { say(text); }
}

export function start(panel) {
  const asking = new Asking(panel);
  const { form, fields } = asking;
  let timer = 0;

  /** Asks with what is typed, unless a field is empty or this has been asked already. */
  const ask = () => {
    clearTimeout(timer);
    const content = new FormData(form);
    const key = JSON.stringify([...content]);
    if (asking.cards[0]?.key === key) return;
    alarm("");
    panel.element.querySelector(".problem")?.remove();
    if (fields.some(({ required, value }) => required && !linesOf(value).length)) {
      asking.clear();
      asking.refresh();
      return;
    }
    const card = new LiveCard(asking, content.get("query")?.trim() ?? "", content, asking.cards[0]);
    card.key = key;
    asking.put(card, 0);
    asking.refresh();
    asking.add(card);
  };

  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, TYPED_MS);
  });
  form.elements.query?.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    ask();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  asking.listen(() => {
    form.reset();
    asking.keep();
  });
  asking.restore();
  ask();
}
