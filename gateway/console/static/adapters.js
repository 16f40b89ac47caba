// Sends an adapter's files: an archive as it is, several files as a tar that is made here.
(() => {
  "use strict";
  const form = document.getElementById("upload");
  if (!form || form.dataset.ready) return;
  form.dataset.ready = "1";
  const input = document.getElementById("u-files"), drop = form.querySelector(".drop"), stop = document.getElementById("upload-stop");
  const progress = document.getElementById("upload-progress"), result = document.getElementById("upload-result");
  const archive = /\.(tar|tgz|tar\.gz|zip)$/i;

  // One header of a tar (ustar): names of up to 100 bytes, sizes in octal.
  const header = (name, size) => {
    const block = new Uint8Array(512), text = new TextEncoder();
    const put = (at, value) => block.set(text.encode(value), at);
    const octal = (value, length) => value.toString(8).padStart(length - 1, "0") + "\0";
    put(0, name); put(100, octal(0o644, 8)); put(108, octal(0, 8)); put(116, octal(0, 8));
    put(124, octal(size, 12)); put(136, octal(0, 12)); put(148, "        "); put(156, "0"); put(257, "ustar\0" + "00");
    put(148, octal(block.reduce((sum, byte) => sum + byte, 0), 7) + " ");
    return block;
  };
  const tar = (files) => {
    const parts = [];
    for (const file of files) parts.push(header(file.name, file.size), file, new Uint8Array((512 - file.size % 512) % 512));
    return new Blob([...parts, new Uint8Array(1024)], { type: "application/x-tar" });
  };
  const size = (bytes) => bytes < 1 << 20 ? `${Math.ceil(bytes / 1024)} KiB` : `${(bytes / (1 << 20)).toFixed(1)} MiB`;
  const problem = (text) => {
    const p = document.createElement("p");
    p.className = "problem";
    p.setAttribute("role", "alert");
    p.textContent = text;
    result.replaceChildren(p);
  };

  for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (e) => { e.preventDefault(); drop.classList.add("over"); });
  for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (e) => { e.preventDefault(); if (e.dataTransfer.files.length) input.files = e.dataTransfer.files; });

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const files = [...input.files];
    const packed = files.length === 1 && archive.test(files[0].name);
    if (!packed && files.some((f) => new TextEncoder().encode(f.name).length > 100)) return problem("A file’s name is too long.");
    if (!packed && files.some((f) => archive.test(f.name))) return problem("Choose either one archive or the files themselves.");
    const body = packed ? files[0].slice(0, files[0].size, "application/octet-stream") : tar(files);
    const query = new URLSearchParams([...new FormData(form)].filter(([, value]) => typeof value === "string" && value));
    query.set("file_name", packed ? files[0].name : files.map((f) => f.name).sort()[0].replace(/\.[^.]*$/, "") + ".tar");
    const request = new XMLHttpRequest(), bar = progress.querySelector("progress"), words = progress.querySelector("span");
    const button = form.querySelector("button.button");
    const end = () => { button.disabled = false; stop.hidden = true; progress.hidden = true; stop.onclick = null; };
    request.open("POST", `${form.action}?${query}`);
    request.setRequestHeader("x-csrf-token", form.dataset.token);
    request.setRequestHeader("hx-request", "true");
    request.setRequestHeader("content-type", body.type || "application/octet-stream");
    request.upload.onprogress = (e) => { bar.value = e.loaded / e.total; words.textContent = `${size(e.loaded)} of ${size(e.total)}`; };
    request.upload.onload = () => { bar.removeAttribute("value"); words.textContent = "Sent. It is checked now …"; };
    request.onerror = () => { end(); problem("The upload broke off. Nothing was registered; try again."); };
    request.onabort = () => { end(); problem("Stopped. Nothing was registered."); };
    request.onload = () => {
      end();
      const to = request.getResponseHeader("hx-redirect");
      if (to) { location.href = to; return; }
      result.innerHTML = request.responseText;  // a page of the console's own
      if (window.htmx) window.htmx.process(result);
      result.scrollIntoView({ block: "nearest" });
    };
    button.disabled = true;
    progress.hidden = false;
    bar.value = 0;
    words.textContent = "";
    result.replaceChildren();
    stop.hidden = false;
    stop.onclick = () => request.abort();
    request.send(body);
  });
})();
