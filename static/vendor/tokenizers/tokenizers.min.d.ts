// What the page uses of @huggingface/tokenizers (local/text/tokenizer.js).
export class Tokenizer {
  constructor(tokenizer: object, config: object);
  normalizer: ((text: string) => string) | null;
  pre_tokenizer: unknown;
  post_processor: unknown;
  encode(text: string, options: object): { ids: number[]; tokens: string[] };
  token_to_id(token: string): number | undefined;
}
