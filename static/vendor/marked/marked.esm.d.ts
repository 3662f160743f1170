// What the page uses of marked (chat/markdown.js).
interface Token {
  text: string;
  href: string;
  checked: boolean;
  depth: number;
  tokens: Token[];
}

export class Marked {
  constructor(options: {
    gfm: boolean;
    breaks: boolean;
    async: boolean;
    renderer: Record<string, (this: { parser: { parseInline(tokens: Token[]): string } }, token: Token) => string>;
  });
  parse(text: string): string;
}
