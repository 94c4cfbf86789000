"use strict";
// Shows the API's document in Swagger. If the service needs a key for it, asks for the key first.

const form = document.querySelector("form");
const key = document.querySelector("#key");
const message = document.querySelector("[role=alert]");

async function show() {
  message.textContent = "";
  const headers = key.value ? { Authorization: `Bearer ${key.value}` } : {};
  const answer = await fetch("openapi.json", { headers });
  form.hidden = answer.status !== 401;
  if (!form.hidden) {
    message.textContent = key.value && "The service refuses this key.";
    key.focus();
  } else if (answer.ok) {
    render(await answer.json());
  } else {
    message.textContent = `The service answered ${answer.status}.`;
  }
}

function render(spec) {
  document.title = `${spec.info.title} - Swagger UI`;
  const ui = SwaggerUIBundle({
    spec,
    dom_id: "#swagger-ui",
    deepLinking: true,
    presets: [SwaggerUIBundle.presets.apis],
    onComplete: () => key.value && ui.preauthorizeApiKey("bearer", key.value),
  });
}

function run() {
  show().catch((error) => {
    message.textContent = `The document cannot be read: ${error.message}`;
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();
run();
