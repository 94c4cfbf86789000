// The view for everything else: the form of a request's declared types, the answer as a table.

import { begin, config, tooLarge, tryTo } from "./common.js";
import { ask, AskCard, form, listen, restore } from "./asking.js";

let asked = 0;

form.addEventListener("submit", tryTo(async (event) => {
  event.preventDefault();
  const content = new FormData(form);
  const bytes = [...content.values()].reduce((sum, value) => sum + (value.size ?? 0), 0);
  if (bytes > Number(config.maxBytes)) throw tooLarge();
  asked += 1;
  ask(new AskCard(`Request ${asked}`, content));
}));
listen();
restore();
begin();
