"use strict";
(function () {
  const root = document.documentElement;
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const drawn = Object.keys(specs).map(function (name) {
    const place = document.getElementById(name);
    return vegaEmbed(place, specs[name], { actions: false, renderer: "svg" }).catch(function (error) {
      place.textContent = "This chart could not be drawn: " + error.message;
      throw error;
    });
  });
  Promise.allSettled(drawn).then(function () { root.dataset.drawn = "yes"; });

  document.getElementById("theme").addEventListener("click", function () {
    const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });
  // Paper shows everything; what was folded is folded again afterwards.
  let opened = [];
  addEventListener("beforeprint", function () {
    opened = Array.from(document.querySelectorAll("details:not([open])"));
    opened.forEach(function (one) { one.open = true; });
  });
  addEventListener("afterprint", function () { opened.forEach(function (one) { one.open = false; }); });
})();
