// The same short text in five languages, and some code: none of it is in the corpus that the small
// tokenizers learned from (tests/tokenizers/corpus).

/** @type {{name: string, text: string}[]} */
export const SAMPLES = [
  {
    name: "English",
    text:
      "The night train leaves at twenty past nine. Maria has packed two books, a warm coat and far too " +
      "many sandwiches. At the station she meets a man who has lost his ticket, and a child who has found " +
      "one. They share the sandwiches, they talk about their journeys, and when the sun rises over the " +
      "mountains, all three of them are asleep.",
  },
  {
    name: "German",
    text:
      "Der Nachtzug fährt um zwanzig nach neun. Maria hat zwei Bücher, einen warmen Mantel und viel zu " +
      "viele belegte Brote eingepackt. Am Bahnhof trifft sie einen Mann, der seine Fahrkarte verloren hat, " +
      "und ein Kind, das eine gefunden hat. Sie teilen die Brote, sie sprechen über ihre Reisen, und als " +
      "die Sonne über den Bergen aufgeht, schlafen alle drei.",
  },
  {
    name: "French",
    text:
      "Le train de nuit part à neuf heures vingt. Maria a emporté deux livres, un manteau chaud et " +
      "beaucoup trop de sandwichs. À la gare, elle rencontre un homme qui a perdu son billet, et un enfant " +
      "qui en a trouvé un. Ils partagent les sandwichs, ils parlent de leurs voyages, et quand le soleil " +
      "se lève sur les montagnes, ils dorment tous les trois.",
  },
  {
    name: "Spanish",
    text:
      "El tren nocturno sale a las nueve y veinte. María ha metido en la maleta dos libros, un abrigo y " +
      "demasiados bocadillos. En la estación se encuentra con un hombre que ha perdido su billete y con un " +
      "niño que ha encontrado uno. Comparten los bocadillos, hablan de sus viajes, y cuando el sol sale " +
      "sobre las montañas, los tres están dormidos.",
  },
  {
    name: "Russian",
    text:
      "Ночной поезд отходит в двадцать минут десятого. Мария взяла с собой две книги, тёплое пальто и " +
      "слишком много бутербродов. На вокзале она встречает мужчину, который потерял билет, и ребёнка, " +
      "который билет нашёл. Они делят бутерброды, рассказывают о своих путешествиях, а когда над горами " +
      "встаёт солнце, все трое спят.",
  },
  {
    name: "Code",
    text: `def moving_average(values: list[float], width: int) -> list[float]:
    """Return the mean of each \`width\` values that follow each other."""
    if width < 1:
        raise ValueError(f"width must be at least 1, not {width}")
    means = []
    for start in range(len(values) - width + 1):
        part = values[start : start + width]
        means.append(sum(part) / width)
    return means
`,
  },
];
