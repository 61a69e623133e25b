// A dangerous button says what is lost and asks once, then clicks itself. Also the copy buttons.
export function installAsk() {
  const dialog = document.getElementById("ask");
  let asking = null;

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-ask]");
    if (!button || button.dataset.agreed) return;
    event.preventDefault();
    event.stopPropagation();
    asking = button;
    dialog.querySelector("h2").textContent = button.dataset.ask;
    dialog.querySelector("p").textContent = button.dataset.lost;
    dialog.querySelector("[value=yes]").textContent = button.dataset.do;
    dialog.returnValue = "no";
    dialog.showModal();
  }, true);

  dialog.addEventListener("close", () => {
    if (!asking) return;
    // The button may have been replaced by a live update while the question was open.
    const button = document.getElementById(asking.id) || asking;
    asking = null;
    if (dialog.returnValue !== "yes" || !button.isConnected) return;
    button.dataset.agreed = "yes";
    button.click();
    delete button.dataset.agreed;
  });

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    document.getElementById("said").textContent = `Copied ${button.dataset.copy}`;
    button.classList.add("good");
    setTimeout(() => button.classList.remove("good"), 1500);
  });
}
