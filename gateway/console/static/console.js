// What the pages need besides htmx: theme, exact times, dialogs, copying, shortcuts, errors beside their form.
(() => {
  "use strict";
  const root = document.documentElement;
  const kept = { get: (k) => { try { return localStorage.getItem(k); } catch { return null; } },
                 set: (k, v) => { try { localStorage.setItem(k, v); } catch { /* private mode */ } } };

  const show = () => {
    const theme = kept.get("florin-theme");
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
    const exact = kept.get("florin-exact") === "1";
    root.toggleAttribute("data-exact", exact);
    document.querySelectorAll("[data-toggle=exact]").forEach((b) => b.setAttribute("aria-pressed", String(exact)));
  };
  show();

  const announce = (text) => {
    const place = document.getElementById("flash");
    if (!place) return;
    const p = document.createElement("p");
    p.className = "notice";
    p.textContent = text;
    place.replaceChildren(p);
  };

  document.addEventListener("click", async (event) => {
    const on = (selector) => event.target.closest(selector);
    let found;
    if ((found = on("[data-toggle=exact]"))) {
      kept.set("florin-exact", kept.get("florin-exact") === "1" ? "0" : "1");
      show();
    } else if ((found = on("[data-toggle=theme]"))) {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      kept.set("florin-theme", dark ? "light" : "dark");
      show();
    } else if ((found = on("[data-dialog]"))) {
      document.getElementById(found.dataset.dialog)?.showModal();
    } else if ((found = on("[data-close]"))) {
      found.closest("dialog")?.close();
    } else if ((found = on("[data-copy]"))) {
      try {
        await navigator.clipboard.writeText(found.dataset.copy);
        const text = found.textContent;
        found.textContent = "Copied";
        setTimeout(() => { found.textContent = text; }, 1500);
      } catch {
        const code = found.parentElement.querySelector("code");
        if (code) getSelection().selectAllChildren(code);
      }
    }
  });

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const search = document.getElementById("search");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    }
  });

  // An error of a form is shown in the form, and what was typed stays.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr, requestConfig } = event.detail;
    if (xhr.status < 400) return;
    const form = requestConfig.elt?.closest?.("form");
    const place = (form && form.querySelector(".form-error")) || (requestConfig.verb !== "get" && document.getElementById("flash"));
    if (place) {
      event.detail.target = place;
      event.detail.swapOverride = "innerHTML";
      event.detail.shouldSwap = true;
      event.detail.isError = false;
    }
  });
  // An error stays at this URL.
  document.addEventListener("htmx:beforeHistoryUpdate", (event) => {
    if (event.detail.xhr && event.detail.xhr.status >= 400 && event.detail.requestConfig?.verb !== "get") event.preventDefault();
  });
  // Charts are loaded by the first page that has one, also if it came in place of another.
  const charts = () => {
    const { charts: script, chartsStyle: style } = document.body.dataset;
    if (!script || !document.querySelector("[data-chart]") || document.querySelector(`script[src="${script}"]`)) return;
    document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: style }),
                         Object.assign(document.createElement("script"), { src: script }));
  };
  charts();
  // A live part that has come to its end leads on.
  document.addEventListener("htmx:sseMessage", () => {
    const on = document.querySelector("[data-go]");
    if (on) location.assign(on.dataset.go);
  });
  document.addEventListener("htmx:sendError", () => announce("The gateway cannot be reached. What is shown may be old."));
  let at = location.pathname;
  document.addEventListener("htmx:afterSettle", (event) => {
    show();
    charts();
    if (event.detail.target !== document.body) return;
    document.getElementById("main")?.focus({ preventScroll: true });
    // Another page begins at its top, and so does what an action did; sorting a table moves nothing.
    if (location.pathname !== at || document.querySelector("#flash .notice")) scrollTo(0, 0);
    at = location.pathname;
  });

  // A sign-in link keeps its secret in the fragment, which no server or log sees.
  const secret = new URLSearchParams(location.hash.slice(1)).get("link");
  const form = document.getElementById("link-form");
  if (secret && form) {
    history.replaceState(null, "", location.pathname + location.search);
    form.elements.link.value = secret;
    form.hidden = false;
    document.getElementById("key-form").hidden = true;
    form.querySelector("button").focus();
  }
})();
