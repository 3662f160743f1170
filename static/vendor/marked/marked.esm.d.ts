// What the page uses of marked (chat/markdown.js).
interface Token {
  text: string;
  href: string;
  checked: boolean;
  depth: number;
  tokens: Token[];
}

/** What makes a token's HTML, by its type. */
export type Renderer = Record<string, (this: { parser: { parseInline(tokens: Token[]): string } }, token: Token) => string>;

export class Marked {
  constructor(options: {
    gfm: boolean;
    breaks: boolean;
    async: boolean;
    renderer: Renderer;
  });
  parse(text: string): string;
}
