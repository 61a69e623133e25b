// What every page does: times in the viewer's zone, questions before dangerous actions, keys, live parts.
import { installAsk } from "./ask.js";
import { installForms } from "./forms.js";
import { installKeys } from "./keys.js";
import { installLive } from "./live.js";
import { localiseTimes } from "./times.js";

localiseTimes(document);
document.addEventListener("htmx:afterSwap", () => localiseTimes(document));
installAsk();
installForms();
installKeys();
installLive(document.body.dataset.topics.trim());
