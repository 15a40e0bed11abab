// Runs before the page is drawn: takes the colours that the reader chose in an earlier visit.
try {
  const chosen = localStorage.getItem("kurma-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // This browser keeps nothing: the system's colours stay.
}
