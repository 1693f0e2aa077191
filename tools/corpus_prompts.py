"""What the conversations of the bundled corpus ask (tools/make_corpus.py): 72 requests of the kinds that people make of an assistant."""

ASK = [
    "Explain {} to a ten-year-old.",
    "What are three advantages and two disadvantages of {}?",
    "Write a short paragraph about {} for a newsletter.",
    "Give me a step-by-step plan for learning about {} in a month.",
    "Summarise what most people get wrong about {}.",
    "Write a dialogue of six lines between two friends who disagree about {}.",
    "List five questions a journalist could ask about {}, and answer the first.",
    "Compare {} with how people did it a hundred years ago.",
]
ABOUT = [
    "growing tomatoes on a balcony",
    "how vaccines work",
    "riding a bicycle to work",
    "the water cycle",
    "keeping a household budget",
    "electric cars",
    "reading before going to sleep",
    "why the sky is blue",
    "sorting a list of numbers with a computer",
]


def prompts():
    """Each kind of request about each thing once: (id, prompt)."""
    return [(f"chat-{i * len(ABOUT) + j}", ask.format(about)) for i, ask in enumerate(ASK) for j, about in enumerate(ABOUT)]
