// The view for everything else: the form of a request's declared types, the answer as a table.

import { begin, config, Problem, tooLarge, tryTo } from "./common.js";
import { ask, AskCard, form, listen, restore } from "./asking.js";

let asked = 0;
const megabytes = (bytes) => (bytes / 1e6).toFixed(bytes < 1e7 ? 2 : 0);

form.addEventListener("submit", tryTo(async (event) => {
  event.preventDefault();
  const content = new FormData(form);
  for (const { files, dataset } of document.querySelectorAll("#ask [type=file]")) {
    const most = Number(dataset.most ?? Infinity);
    if (files[0]?.size > most) {
      throw new Problem("This file is too large.", `The limit is ${megabytes(most)} MB.`);
    }
  }
  const bytes = [...content.values()].reduce((sum, value) => sum + (value.size ?? 0), 0);
  if (bytes > Number(config.maxBytes)) throw tooLarge();
  asked += 1;
  ask(new AskCard(`Request ${asked}`, content));
}));
listen();
restore();
begin();
