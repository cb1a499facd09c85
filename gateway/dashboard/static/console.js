// Offers the browser's own time zone where times are shown in another one and nobody chose.
"use strict";
{
  const form = document.getElementById("own-zone");
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (form && zone && zone !== form.dataset.zone && !form.dataset.chosen) {
    form.elements.zone.value = zone;
    form.querySelector("span").textContent = zone;
    form.hidden = false;
  }
}

// Copies what stands in another element.
for (const button of document.querySelectorAll("button[data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}
