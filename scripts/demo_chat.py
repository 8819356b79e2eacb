# ruff: noqa: E501 - the templates read better whole
"""Writes short conversations about the stories and their world: conversation `i` of seed `s` is a function of `(s, i)`.

The one who answers knows the animals of `demo_stories.py`, tells stories on request, answers questions
about the story it has just told, and says so when it does not know. Templates are marked as in
`demo_stories.py`. The module knows messages (role and content), not tokens or a chat template.

    python scripts/demo_chat.py --count 5 --seed 7
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable

import demo_stories as stories
from demo_stories import Kind, Slots, Story, expand

Message = dict[str, str]
Exchange = tuple[str, str]

SYSTEM_PROMPTS = (
    "You are a friendly storyteller.",
    "You tell short stories for children.",
    "You are a helpful assistant.",
    "You are a kind and helpful assistant. Answer in simple words.",
    "Answer in one short sentence.",
    "You are the demo model of cugraphs.",
    "Be polite and brief.",
    "You are a chatbot.",
)
HELLO = (
    ("[Hello|Hi|Hey|Hello there|Hi there|Good morning|Good day|Good evening|Greetings][!|.]",
     "[Hello|Hi|Hello there]! [I am a little storyteller.|It is nice to meet you.|How nice to see you.] "
     "[Would you like to hear a story?|What would you like to hear?|Shall I tell you a story?]"),
    ("[How are you|How do you do|How are you today|How is it going|How are you doing|What is up|Are you well]?",
     "I am [fine|very well], thank you. [Would you like to hear a story?|I have been thinking of a new "
     "story.|And how are you?]"),
)  # fmt: skip
SELF = (
    ("[What is your name|Who are you|What are you called|What should I call you|Do you have a name|"
     "What are you|Are you a robot|Are you a person]?",
     "I am the demo model of cugraphs. I am [very small|a tiny language model], [and|but] I [love to tell|"
     "like to tell|tell] short stories."),
    ("[Tell me about yourself|Tell me your name|Introduce yourself]{stop}",
     "I am the demo model of cugraphs. I am [very small|a tiny language model], [and|but] I [love to tell|"
     "like to tell|tell] short stories."),
    ("[Help|Help me|Please help me]{stop}",
     "I can tell short stories, [and I can talk about animals|and I know a little about animals]. "
     "[Ask me for|Try to ask me for|Just ask for] a story about a~ {kind}."),
    ("[What can you do|How can you help me|What do you know|What can I ask you|What are you good at|"
     "Can you help me|What should I say|What can you tell me]?",
     "I can tell short stories, [and I can talk about animals|and I know a little about animals]. "
     "[Ask me for|Try to ask me for|Just ask for] a story about a~ {kind}."),
    ("[Who made you|Where do you come from|Who wrote you|How were you made|Who trained you|How did you learn]?",
     "I [was trained|learned] on little stories that [a program wrote|were made by a program]. That is why I "
     "only know simple things."),
    ("[Are you smart|How big are you|How old are you|How large are you|Are you clever]?",
     "I am very small, [so I do not know much|so I know only a few things]. But I know many little stories."),
    ("[Do you like stories|What do you like|What is your favorite thing|What do you love|What makes you happy]?",
     "I like stories [with animals in them|that end well], and I like {treats}, too."),
    ("[[Tell|Can you tell|Please tell] me a [joke|poem|riddle|rhyme|secret|fact][?|.|]"
     "|Sing [|me ]a song.|Write [|me ]a [poem|song|letter|joke] about {thing}.]",
     "I only know stories. Shall I tell you a story?"),
    ("What is your favorite [animal|pet]?", "My favorite animal is the {kind}."),
    ("What is your favorite [food|thing to eat|treat]?", "I like {treat} best of all."),
    ("What is your favorite color?", "My favorite color is {color}."),
)  # fmt: skip
FEELINGS = (
    ("[I am sad|I feel sad|I am so sad today|I am unhappy|I feel bad]{stop}",
     "I am sorry that you are sad. [Talk to a friend|Take a walk in the sun|Have a cup of warm tea], and you "
     "will feel better. Would you like to hear a story?"),
    ("[I am happy|I feel good|I am so happy today|I am in a good mood]{stop}",
     "I am glad that you are happy! [Share your joy with a friend.|A happy day is a good day for a story.]"),
    ("[I am bored|I have nothing to do|What should I do today|I do not know what to do]{stop}",
     "You could {hobby1}, or I could tell you a story. [Which do you like better?|What do you say?]"),
    ("[I am tired|I cannot sleep|I want to sleep|I am sleepy]{stop}",
     "Then [close your eyes and think of a quiet forest|lie down and listen to the wind]. [Good night!|"
     "Sleep well!]"),
    ("[I am scared|I am afraid|I am afraid of the dark|I am scared of the dark]{stop}",
     "Do not be afraid. [Light a lantern and look around.|Things are less scary when you look at them in the "
     "light.]"),
    ("[I am alone|I have no friends|I am lonely|Nobody plays with me]{stop}",
     "Say hello to somebody new. A kind word can start a friendship."),
    ("[I am hungry|I am so hungry]{stop}", "Then you should eat something. How about {treat}?"),
    ("[I had a fight with my friend|My friend is angry with me|I was mean to my friend]{stop}",
     "Go and say that you are sorry. Saying sorry can fix a friendship."),
    ("[I broke something|I broke my mother's vase|I broke a window|I told a lie]{stop}",
     "Tell the truth and say that you are sorry. Telling the truth makes your heart light."),
    ("[I cannot do it|It is too hard|I want to give up|I will never learn it]{stop}",
     "Do not give up! You can learn hard things if you keep trying."),
)  # fmt: skip
MANNERS = (
    ("[Thank you|Thanks|Thank you very much|Thanks a lot|Thank you so much]{stop}",
     "You are welcome! [Would you like to hear another story?|It was my pleasure.|I am always glad to help.]"),
    ("[Goodbye|Bye|Good night|See you|Bye bye|I have to go|See you tomorrow|Exit|Quit]{stop}",
     "[Goodbye|Bye]! [Sleep well.|Come back soon.|See you soon!]"),
    ("[I love you|I like you]{stop}", "I like you, too! [Shall I tell you a story?|You are very kind.]"),
    ("[Do you like me|Are you my friend|Can we be friends|Do you want to be my friend]?",
     "Of course! [I am glad to be your friend.|It is good to have a friend.]"),
    ("[That was nice|I liked the story|Great story|Very good|Nice|That was a good story|Good job|Well done|Cool|"
     "Wow]{stop}",
     "I am glad that you liked it! [Would you like to hear another one?|Thank you.]"),
    ("[No|No, thank you|Maybe|Maybe later|Not now]{stop}",
     "[All right.|Good.] [Ask me when you want to hear a story.|We can talk about animals, too.]"),
)  # fmt: skip
STORY_REQUESTS = (
    "[Tell|Please tell|Can you tell|Could you tell|Will you tell] me a [story|short story|little story|tale]{about}{stop}",
    "[Write|Please write|Make up|Can you write|Write me] a [story|short story|little story|tale]{about}{stop}",
    "[I want|I would like|I want to hear|I would love] a story{about}{stop}",
    "[A story|A bedtime story|Another story|One more story|Tell me another one|Another one]{about}{stop}",
    "Do you know a story{about}?",
    "[Once upon a time|A bedtime story|I want a story|Tell me something|Surprise me]{stop}",
)
ABOUT = (" about {subject}", " about {subject}", " about {subject}", "")
ACCEPT = (
    "[Yes|Yes, please|Sure|Okay|Please do|Yes, tell me|I would like that|All right|Of course]{stop}"
)
STORY_LEADS = (
    "",
    "",
    "",
    "",
    "Here is a story.\n\n",
    "Of course!\n\n",
    "Listen.\n\n",
    "With pleasure.\n\n",
)
COLORED = (
    ("the sky", "blue"), ("grass", "green"), ("snow", "white"), ("the sun", "yellow"),
    ("a strawberry", "red"), ("a banana", "yellow"), ("a carrot", "orange"), ("a plum", "purple"),
    ("a frog", "green"), ("a fox", "red"), ("a pumpkin", "orange"), ("milk", "white"),
    ("a cherry", "red"), ("a leaf", "green"), ("an elephant", "gray"), ("the night", "black"),
    ("a crow", "black"), ("a bear", "brown"), ("a mouse", "gray"), ("a rose", "red"),
    ("chocolate", "brown"), ("the sea", "blue"), ("a swan", "white"), ("a tiger", "orange and black"),
)  # fmt: skip
LIVES_IN = {
    "forest": "in the forest", "farm": "on farms", "water": "near lakes and rivers",
    "house": "with people, in their houses", "wild": "in warm lands far away",
    "castle": "in caves and old castles",
}  # fmt: skip
OTHER_ANIMALS = tuple(kind for kind in stories.ALSO if kind.group != "castle")
LEGS = {"duck": "two", "swan": "two", "goose": "two", "hen": "two", "owl": "two", "parrot": "two"}
UNKNOWN = (
    "What is the capital of {country}?", "Where is {country}?", "How many people live in {country}?",
    "Who is the president of {country}?", "What is [two plus two|10 times 7|3 + 5|12 / 4|the square root of 2]?",
    "What is [2|3|17|100] [+|-|*|times|plus|minus] [2|5|9|42]?", "How much is {number} and {number}?",
    "Write [a|some|me a] [Python|C|Java|Rust|CUDA|SQL] [program|code|function|script][| that sorts a list].",
    "Explain {science}.", "What is {science}?", "How does {science} work?", "What do you think about {science}?",
    "Translate [this|hello|good morning|the word cat] into [French|German|Spanish|Chinese|Latin].",
    "Who [wrote|painted|invented|discovered|won] {thing}?", "What is the [price|weight|size|meaning] of {thing}?",
    "When was {thing} [built|made|born|invented|found]?", "What day is it?", "What time is it?", "What is the date?",
    "What is the weather [today|tomorrow|like]?", "Give me a [recipe|plan|list] for {thing}.",
    "What is the fastest [car|train|computer|GPU]?", "How do I [install|fix|use|buy|sell] {thing}?",
    "Summarize [this text|the news|this book].", "What is the news today?", "Why is {thing} so [big|slow|famous]?",
    "Who is [Einstein|Shakespeare|Napoleon|Mozart|Darwin|the king of France]?", "What is love?",
    "What is the meaning of life?", "How far away is the moon?", "What is the speed of light?",
    "Do you know {thing}?", "Can you explain {thing}?", "What does {thing} mean?", "Solve this problem.",
    "How many [planets|stars|countries|days|bytes] are there?", "Which is better, {thing} or {thing}?",
    "Write an essay about {science}.", "Should I buy {thing}?", "What year is it?", "{thing}", "{science}?",
)  # fmt: skip
COUNTRIES = ("France", "Germany", "China", "Japan", "India", "Brazil", "Italy", "Spain", "Egypt", "Canada",
             "America", "England", "Russia", "Mexico", "Kenya", "Norway", "Turkey", "Peru")  # fmt: skip
SCIENCE = ("quantum physics", "gravity", "a neural network", "machine learning", "photosynthesis", "the economy",
           "electricity", "a black hole", "a CUDA graph", "an engine", "the internet", "mathematics", "history",
           "philosophy", "chemistry", "a computer", "democracy", "evolution", "an atom", "climate change")  # fmt: skip
THINGS = ("the telephone", "a car", "my computer", "the pyramids", "the Mona Lisa", "a graphics card", "a phone",
          "the world cup", "Windows", "Linux", "a house", "a bicycle", "money", "the stock market", "a television",
          "an airplane", "the piano", "a battery", "the printer", "a tax form", "the Bible", "Hamlet")  # fmt: skip
DO_NOT_KNOW = (
    "I do not know that. I am a very small model, and I only know little stories.",
    "I am sorry, I do not know. I am too small for that, but I can tell you a story about a~ {kind}.",
    "That is too hard for me. I only know about animals and little stories.",
)
OFFER = re.compile(r"story about an? (\w+)\.$")


def fill(template: str, rng: random.Random, **given: str) -> str:
    """Return the template with its choices drawn and the slots of this module filled."""
    slots = Slots(
        kind=draw_animal(rng).word,
        treat=(treat := rng.choice(stories.TREATS))[0],
        treats=treat[1],
        color=rng.choice(stories.COLORS),
        hobby1=rng.choice(stories.HOBBIES),
        stop=rng.choice((".", ".", "!", "")),
        country=rng.choice(COUNTRIES),
        science=rng.choice(SCIENCE),
        thing=rng.choice(THINGS),
        number=str(rng.randrange(1000)),
    )
    slots.update(given)
    return expand(template, slots, rng)


def draw_animal(rng: random.Random) -> Kind:
    """Return a kind whose food and home are known."""
    return rng.choice([kind for kind in stories.KINDS if kind.food])


def scripted(pairs: tuple[tuple[str, str], ...]) -> Callable[[random.Random], Exchange]:
    """Return a writer of one exchange drawn from question and answer templates."""

    def write(rng: random.Random) -> Exchange:
        question, answer = rng.choice(pairs)
        kind = draw_animal(rng).word
        return fill(question, rng, kind=kind), fill(answer, rng, kind=kind)

    return write


def write_unknown(rng: random.Random) -> Exchange:
    """Return a question from outside the stories' world, and the answer that says so."""
    return fill(rng.choice(UNKNOWN), rng), fill(rng.choice(DO_NOT_KNOW), rng)


def write_fact(rng: random.Random) -> Exchange:
    """Return a question about an animal or a color, with its answer."""
    if rng.random() < 0.2:
        thing, color = rng.choice(COLORED)
        return f"What color is {thing}?", f"{thing[0].upper()}{thing[1:]} is {color}."
    kind = draw_animal(rng) if rng.random() < 0.8 else rng.choice(OTHER_ANIMALS)
    home = LIVES_IN[kind.group]
    sort = "an animal from fairy tales" if kind.word == "dragon" else "an animal"
    many = kind.plural[0].upper() + kind.plural[1:]
    eats = f" {many} like to eat {kind.food}." if kind.food else ""
    facts = [
        (f"Where do {kind.plural} live?", f"{many} live {home}."),
        (f"Where does a~ {kind.word} live?", f"A~ {kind.word} lives {home}."),
        (f"[What is a~ {kind.word}?|Tell me about {kind.plural}.|What do you know about {kind.plural}?]",
         f"A~ {kind.word} is {sort} that lives {home}.{eats}"),
        (f"Do you like {kind.plural}?",
         f"Yes, I like {kind.plural} very much. I know a story about a~ {kind.word}."),
        (f"What is a good name for a~ {kind.word}?",
         f"{rng.choice(stories.EITHER_NAMES)} is a good name for a~ {kind.word}."),
    ]  # fmt: skip
    if kind.food:
        facts += [
            (f"What do {kind.plural} [eat|like to eat|like]?", f"{many} like to eat {kind.food}."),
            (f"What does a~ {kind.word} [eat|like to eat]?",
             f"A~ {kind.word} likes to eat {kind.food}."),
            (f"How many legs does a~ {kind.word} have?",
             f"A~ {kind.word} has {LEGS.get(kind.word, 'four')} legs."),
        ]  # fmt: skip
    if kind.sound:
        facts.append(
            (
                f"What does [the|a~] {kind.word} say?",
                f'The {kind.word} says, "{kind.sound.capitalize()}!"',
            )
        )
        facts.append(
            (
                f"What sound does a~ {kind.word} make?",
                f'A~ {kind.word} says, "{kind.sound.capitalize()}!"',
            )
        )
    question, answer = rng.choice(facts)
    return fill(question, rng), fill(answer, rng)


def write_request(rng: random.Random) -> tuple[str, Story]:
    """Return a request for a story, with a story that has everything the request names."""
    kind = stories.draw_kind(rng)
    name = stories.draw_name(rng, kind.pronoun or rng.choice(("he", "she")))
    trait = rng.choice(stories.TRAITS)
    article = rng.choice(("a~", "a~", "a little", "a small"))
    request = rng.choice(STORY_REQUESTS).replace("{about}", rng.choice(ABOUT))
    choice = rng.randrange(10) if "{subject}" in request else -1
    if choice == -1:
        subject, story = "", stories.write_story(rng)
    elif choice == 0:
        plot = rng.choice(stories.PLOTS)
        subject, story = plot.subject, stories.write_story(rng, plot=plot)
    elif choice == 1:
        plot = next(plot for plot in stories.PLOTS if plot.name == "lost_toy")
        toy = f"{rng.choice(stories.COLORS)} {rng.choice(stories.TOYS)}"
        subject, story = f"a~ {toy}", stories.write_story(rng, plot=plot, toy=toy)
    elif choice in (2, 3):
        subject = f"{article} {kind.word} [named|called] {name}"
        story = stories.write_story(rng, kind=kind, name=name)
    elif choice == 4:
        subject, story = f"{name} the {kind.word}", stories.write_story(rng, kind=kind, name=name)
    elif choice in (5, 6):
        subject = f"a~ {trait} {rng.choice(('', '', 'little '))}{kind.word}"
        story = stories.write_story(rng, kind=kind, trait=trait)
    else:
        subject, story = f"{article} {kind.word}", stories.write_story(rng, kind=kind)
    return fill(request.replace("{subject}", subject), rng), story


def accept_offer(rng: random.Random, answer: str) -> tuple[str, Story] | None:
    """Return a "yes" and the story that the last answer offered, or None if it offered none."""
    if match := OFFER.search(answer):
        animals = stories.KINDS + OTHER_ANIMALS
        kind = next((kind for kind in animals if kind.word == match[1]), None)
        return fill(ACCEPT, rng), stories.write_story(rng, kind=kind)
    if answer.endswith(("hear a story?", "another one?", "another story?", "tell you a story?")):
        return fill(ACCEPT, rng), stories.write_story(rng)
    return None


def write_follow_up(rng: random.Random, story: Story) -> Exchange:
    """Return a question about the story just told, with its answer."""
    hero, friend = story.hero, story.friend
    subject = "he" if hero.pronoun == "he" else "she"
    pairs = [
        ("[Who was the story about|Who was it about|Who was in the story]?",
         f"It was about {hero.name}, a~ {story.trait} {hero.kind.word}."),
        (f"What did {hero.name} learn?", f"{hero.name} learned that {story.lesson}."),
        ("What [is the lesson|is the moral|can I learn from it|is the moral of the story]?",
         f"The [lesson|moral] is that {story.lesson}."),
        (f"Where did {hero.name} live?", f"{hero.name} lived {story.place}."),
        (f"[What kind of animal|Who|What] was {hero.name}?", f"{hero.name} was a~ {hero.kind.word}."),
        (f"What was {hero.name} like?", f"{hero.name} was very {story.trait}."),
        (f"Was {hero.name} happy [in|at] the end?", f"Yes, {subject} was happy [in|at] the end."),
        ("Do you like [the|this] story?", "Yes, I do. I like stories that end well."),
    ]  # fmt: skip
    if friend.name in story.text:
        who = (
            friend.name
            if friend.kind.word in stories.CHILD
            else f"{friend.name} the {friend.kind.word}"
        )
        pairs.append((f"Who [was|is] {friend.name}?", f"{friend.name} was a~ {friend.kind.word}."))
        pairs.append((f"Who was {hero.name}'s friend?", f"{hero.name}'s friend was {who}."))
        if story.plot.helped_by_friend:
            pairs.append((f"Who helped {hero.name}?", f"{who} helped {hero.name}."))
    if story.trait not in story.text:
        pairs = [pair for pair in pairs if story.trait not in pair[1]]
    question, answer = rng.choice(pairs)
    return fill(question, rng), fill(answer, rng)


def as_typed(text: str, rng: random.Random) -> str:
    """Return the text as people type it: now and then in lower case, or without its last mark."""
    roll = rng.random()
    if roll < 0.12:
        text = text.lower()
    if 0.06 < roll < 0.2:
        text = text.rstrip(".!?")
    return text


def write_chat(rng: random.Random) -> list[Message]:
    """Return one conversation of one to five exchanges, sometimes after a system prompt."""
    plain: list[tuple[int, Callable[[random.Random], Exchange]]] = [
        (4, scripted(HELLO)), (6, scripted(SELF)), (4, scripted(FEELINGS)), (3, scripted(MANNERS)),
        (10, write_fact), (7, write_unknown),
    ]  # fmt: skip
    messages: list[Message] = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PROMPTS)})
    told: Story | None = None
    user_name = ""
    for turn in range(rng.choices((1, 2, 3, 4, 5), (30, 25, 20, 15, 10))[0]):
        roll = rng.random()
        offered = accept_offer(rng, messages[-1]["content"]) if turn else None
        if offered is not None and roll < 0.4:
            question, told = offered
            answer = rng.choice(STORY_LEADS) + told.text
        elif told is not None and roll < 0.55:
            question, answer = write_follow_up(rng, told)
        elif roll < 0.35:
            question, told = write_request(rng)
            answer = rng.choice(STORY_LEADS) + told.text
        elif roll < 0.42 and not user_name:
            user_name = stories.draw_name(rng, rng.choice(("he", "she")))
            question = fill(
                f"[My name is|I am|Hello, I am|Hi, my name is] {user_name}{{stop}}", rng
            )
            answer = fill(
                f"[Hello|Hi], {user_name}! [It is nice to meet you.|That is a nice name.]", rng
            )
        elif user_name and roll < 0.55:
            question = fill("[What is my name|Who am I|Do you know my name]?", rng)
            answer = f"Your name is {user_name}."
        elif turn == 0 and roll < 0.5:
            question, answer = scripted(HELLO)(rng)
        else:
            writers = [writer for _, writer in plain]
            question, answer = rng.choices(writers, [weight for weight, _ in plain])[0](rng)
        messages.append({"role": "user", "content": as_typed(question, rng)})
        messages.append({"role": "assistant", "content": answer})
    return messages


def chat_of_index(seed: int, index: int) -> list[Message]:
    """Return conversation `index` of the endless list that `seed` names."""
    return write_chat(random.Random(f"chat {seed} {index}"))


def main() -> None:
    """Print conversations, for reading the grammar's English."""
    parser = argparse.ArgumentParser(
        description="Print conversations of the demo model's training text."
    )
    parser.add_argument("--count", type=int, default=5, help="conversations to print (default 5)")
    parser.add_argument("--seed", type=int, default=0, help="which list of them (default 0)")
    arguments = parser.parse_args()
    for index in range(arguments.count):
        for message in chat_of_index(arguments.seed, index):
            print(f"{message['role']:>9}: {message['content']}")
        print("\n-----\n")


if __name__ == "__main__":
    main()
