"use strict";
/* What this page is about: text that was escaped where it was written. */
const page = JSON.parse(document.getElementById("data").textContent);
