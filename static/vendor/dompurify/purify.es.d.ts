// What the page uses of DOMPurify (chat/markdown.js).
declare const DOMPurify: { sanitize(html: string, options: object): DocumentFragment };
export default DOMPurify;
