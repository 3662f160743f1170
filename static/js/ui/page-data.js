// Data that the server writes into the page (app/http/page_data.py).

/** Return the data of the script element with this id, parsed. @param {string} id */
export const pageData = (id) => JSON.parse(document.getElementById(id)?.textContent ?? "");
