# ruff: noqa: E501, SIM905 - the templates and word lists read better whole
"""Writes short children's stories: document `i` of seed `s` is a function of `(s, i)` alone.

A story is an opening, one of the plots, and an ending. Every text below is a template with two marks:
`[one|two|]` picks one of its branches (they nest), and `{slot}` is filled from the story's cast; a slot
written with a capital, `{He}`, starts a sentence; `a~ ` becomes "a" or "an" by the word that follows.
All of it was written for this project. The module knows nothing of tokens, models or chat.

    python scripts/demo_stories.py --count 3 --seed 7
"""

from __future__ import annotations

import argparse
import random
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Option = TypeVar("Option")

MALE_NAMES = tuple(
    "Tom Ben Max Sam Leo Jack Finn Oscar Henry Theo Otto Hugo Jonah Peter Will Charlie Ned Toby "
    "Arthur Felix Ravi Omar Kofi Mateo Luca Ivan Kenji Anton Bruno Rufus Walter Milo Bob Tim "
    "Daniel Oliver Emil Noah Adam David George Paul Victor Edgar Ali Marco Steve Alexander Robert "
    "James John William Michael Thomas Mark Andrew Eric Alex Nick Simon Martin Patrick Philip "
    "Richard Joe Dan Mike Liam Ethan Lucas Mason Logan Karl Frank Fred Harry Louis".split()
)
FEMALE_NAMES = tuple(
    "Lily Anna Mia Rose Emma Lucy Nora Clara Ella Ruby Ivy Daisy Sophie Molly Greta Hannah Ada "
    "Alice Tilly Maya Zara Amina Yuki Lena Elsa Freya Ines Nina Olga Penny Wanda Sara Jane Eva "
    "Julia Martha Leila Priya Tess Violet Stella Grace Flora Dora Kate Mary Sarah Laura Elizabeth "
    "Emily Olivia Sophia Isabella Charlotte Amelia Susan Linda Anne Helen Irene Paula Heidi Ingrid "
    "Marie Linh Carla Bella Betty Gina Peggy".split()
)
EITHER_NAMES = tuple(
    "Pip Hazel Bramble Clover Biscuit Pepper Sunny Button Maple Juniper Robin Sky Fern Ginger "
    "Cookie Pebble Willow Nutmeg Acorn Moss Berry Ziggy Waffle Poppy Dusty Olive Twig Muffin".split()
)
ONSETS = (
    "B Bl Br C Ch Cl Cr D Dr F Fl Fr G Gl Gr H J K Kr L M N P Pl Pr Qu R S Sc Sh Sk Sl Sm Sn Sp St "
    "Str Sw T Th Tr V W Y Z".split()
)
VOWELS = "a e i o u a e i o u ai ea ee oo ou y".split()
CODAS = " - - - n r l m t x ck nd rt ll sh th ng nk p d g b v".replace("-", " ").split(" ")
LAST_LETTERS = ("", "", "y", "ie", "a", "o", "us", "ella", "er", "in")


@dataclass(frozen=True)
class Kind:
    """A sort of character: `word` and `plural`, where it may live (`group`), what it eats and says."""

    word: str
    plural: str
    group: str
    food: str = ""
    sound: str = ""
    pronoun: str = ""


KINDS = (
    Kind("fox", "foxes", "forest", "berries and eggs", "yip"),
    Kind("rabbit", "rabbits", "forest", "carrots and clover"),
    Kind("bear", "bears", "forest", "honey and berries", "growl"),
    Kind("squirrel", "squirrels", "forest", "nuts and seeds"),
    Kind("hedgehog", "hedgehogs", "forest", "apples and worms"),
    Kind("owl", "owls", "forest", "mice and beetles", "hoot"),
    Kind("deer", "deer", "forest", "grass and leaves"),
    Kind("badger", "badgers", "forest", "roots and berries"),
    Kind("mole", "moles", "forest", "worms and roots"),
    Kind("wolf", "wolves", "forest", "meat", "howl"),
    Kind("mouse", "mice", "farm", "cheese and seeds", "squeak"),
    Kind("pig", "pigs", "farm", "corn and apples", "oink"),
    Kind("lamb", "lambs", "farm", "grass and clover", "baa"),
    Kind("pony", "ponies", "farm", "hay and apples", "neigh"),
    Kind("goat", "goats", "farm", "grass and leaves", "maa"),
    Kind("cow", "cows", "farm", "grass and hay", "moo", "she"),
    Kind("hen", "hens", "farm", "corn and seeds", "cluck", "she"),
    Kind("frog", "frogs", "water", "flies and bugs", "ribbit"),
    Kind("duck", "ducks", "water", "seeds and water plants", "quack"),
    Kind("otter", "otters", "water", "fish"),
    Kind("beaver", "beavers", "water", "bark and leaves"),
    Kind("turtle", "turtles", "water", "leaves and berries"),
    Kind("swan", "swans", "water", "water plants"),
    Kind("goose", "geese", "water", "grass and seeds", "honk"),
    Kind("cat", "cats", "house", "fish and milk", "meow"),
    Kind("dog", "dogs", "house", "meat and bones", "woof"),
    Kind("kitten", "kittens", "house", "fish and milk", "mew"),
    Kind("puppy", "puppies", "house", "meat and biscuits", "yap"),
    Kind("boy", "boys", "house", pronoun="he"),
    Kind("girl", "girls", "house", pronoun="she"),
    Kind("boy", "boys", "house", pronoun="he"),
    Kind("girl", "girls", "house", pronoun="she"),
    Kind("lion", "lions", "wild", "meat", "roar"),
    Kind("elephant", "elephants", "wild", "leaves and fruit"),
    Kind("monkey", "monkeys", "wild", "bananas and nuts"),
    Kind("tiger", "tigers", "wild", "meat", "roar"),
    Kind("parrot", "parrots", "wild", "fruit and seeds", "squawk"),
    Kind("dragon", "dragons", "castle", "hot soup and coal"),
    Kind("princess", "princesses", "castle", pronoun="she"),
    Kind("prince", "princes", "castle", pronoun="he"),
    Kind("knight", "knights", "castle"),
)


def plural_of(word: str) -> str:
    """Return the plural of one of the words below."""
    if word in ("moose", "sheep"):
        return word
    return word[:-1] + "ies" if word.endswith("y") else word + ("es" if word[-1] in "hs" else "s")


ALSO = tuple(
    Kind(word, plural_of(word), group, pronoun=pronoun)
    for group, words, pronoun in (
        ("forest", "snail bee raccoon moose skunk bat bird chipmunk", ""),
        ("farm", "horse donkey sheep chicken cricket ladybug", ""),
        ("water", "crab snake penguin dragonfly", ""),
        ("house", "hamster spider pug", ""),
        ("wild", "panda zebra giraffe crocodile kangaroo camel dinosaur koala", ""),
        ("castle", "unicorn ghost troll", ""),
        ("castle", "king wizard", "he"),
        ("castle", "queen fairy witch mermaid", "she"),
    )
    for word in words.split()
)
FOLK = tuple(
    Kind(word, word + "s", "house")
    for word in (
        "robot farmer baker sailor pirate painter gardener teacher doctor clown "
        "astronaut tailor miller shepherd dancer singer fisher explorer inventor".split()
    )
)
CHILD = frozenset({"boy", "girl"})

OBJECTS = tuple(
    Kind(word, plural_of(word), "house")
    for word in (
        "train truck teapot toaster cloud star tree flower candle clock umbrella shoe spoon pencil "
        "car bus rocket doll leaf stone lamp chair bicycle tractor cupcake carrot potato broom "
        "pillow pancake button kettle snowflake".split()
    )
)

HOMES = {
    "forest": ("a hollow tree", "a cozy den", "a warm burrow", "a little house of sticks"),
    "farm": ("an old red barn", "a warm stable", "a little shed", "a corner of the big barn"),
    "water": (
        "a nest of reeds",
        "a little house of sticks",
        "a dry cave",
        "a hut of mud and reeds",
    ),
    "house": (
        "a small house",
        "a white cottage",
        "a little house with a blue door",
        "a tiny cabin",
    ),
    "wild": ("a hut of leaves", "a dry cave", "a shady cave", "a little house of bamboo"),
    "castle": ("a tall castle", "a small castle with a red roof", "an old stone tower"),
}
PLACES = {
    "forest": ("in the forest", "in a quiet forest", "at the edge of the woods", "in a green valley",
               "on a grassy hill"),
    "farm": ("on a sunny farm", "on a small farm", "near a busy village", "in a green valley"),
    "water": ("by a blue lake", "by a quiet pond", "near a wide river", "beside a clear stream"),
    "house": ("in a small village", "by the sea", "near a wide river", "at the edge of the woods",
              "in a quiet town", "on a sunny farm"),
    "wild": ("in a green jungle", "at the edge of the jungle", "on a warm island"),
    "castle": ("on a high hill", "by a deep lake", "in a faraway land", "near the mountains"),
}  # fmt: skip
TRAITS = tuple(
    "kind brave shy curious cheerful gentle clever friendly quiet happy playful lively polite "
    "careful bright honest merry".split()
)
PLOT_OF_TRAIT = {
    "kind": "sharing", "brave": "rescue", "shy": "new_friend", "curious": "noise",
    "cheerful": "race", "gentle": "sick_friend", "clever": "building", "friendly": "storm",
    "quiet": "lost_toy", "happy": "birthday", "playful": "quarrel", "lively": "lost_way",
    "polite": "found", "careful": "seed", "bright": "small_hero", "honest": "honesty",
    "merry": "greedy",
}  # fmt: skip
SIZES = ("little", "small", "young", "tiny")
COLORS = ("red", "blue", "green", "yellow", "orange", "purple", "white", "golden", "silver")
TOYS = ("ball", "kite", "boat", "bell", "scarf", "drum", "hat", "wagon", "top", "whistle", "blanket",
        "bucket", "lantern", "balloon", "book", "flute")  # fmt: skip
HOBBIES = (
    "sing songs", "run in the tall grass", "look at the stars", "collect smooth stones",
    "jump in puddles", "listen to stories", "paint pictures", "chase butterflies",
    "watch the clouds", "dance in the rain", "pick flowers", "tell jokes", "play hide and seek",
    "roll down the hill", "bake cookies", "make paper boats", "climb trees", "read books",
)  # fmt: skip
TREATS = (
    ("a basket of berries", "berries"), ("a big apple pie", "pie"), ("a jar of honey", "honey"),
    ("a loaf of warm bread", "bread"), ("a bag of nuts", "nuts"), ("a box of cookies", "cookies"),
    ("a plate of pancakes", "pancakes"), ("a bowl of cherries", "cherries"),
    ("a chocolate cake", "cake"), ("a basket of ripe plums", "plums"), ("a bag of pears", "pears"),
)  # fmt: skip
HIDING_INSIDE = (
    "under the bed", "behind the door", "under the table", "under the rug", "in the cupboard",
    "behind the stove", "inside an empty basket",
)  # fmt: skip
HIDING_OUTSIDE = (
    "in the tall grass", "beside the well", "under an old bench", "behind a big rock",
    "among the flowers", "near the garden gate", "on top of the woodpile", "beside the path",
    "under a pile of leaves", "behind the apple tree", "next to a puddle",
)  # fmt: skip
HELPERS = (
    ("a wise old owl", "owl"), ("an old turtle", "turtle"), ("a gray goose", "goose"),
    ("a friendly beaver", "beaver"), ("an old goat", "goat"), ("a big brown horse", "horse"),
    ("a wise old crow", "crow"), ("an old gray donkey", "donkey"),
)  # fmt: skip
ELDERS = ("mother", "father", "grandmother", "grandfather")
SKY = {
    "sunny": ("The sky was blue, and the birds were singing.", "The sun was warm and bright.",
              "There was not a cloud in the sky.", "Bees were humming in the flowers."),
    "windy": ("The wind danced in the trees.", "The leaves flew around like little birds.",
              "White clouds raced across the sky."),
    "cool": ("The air was fresh and clear.", "The grass was wet with dew.",
             "Small gray clouds hung over the hills."),
    "misty": ("A soft white mist lay over the fields.", "The hills were hidden in the mist.",
              "Everything was gray and still."),
    "warm": ("The air smelled of flowers.", "A soft wind was blowing.",
             "Butterflies flew over the grass."),
}  # fmt: skip
RESCUES = (
    ("at the bottom of a deep hole", ("lamb", "puppy", "rabbit", "kitten"),
     "{He} tied a rope to a tree and let the other end down into the hole. The {victim} held on "
     "tight, and {hero} pulled and pulled."),
    ("in the middle of the deep mud", ("lamb", "duckling", "puppy"),
     "{He} laid a long branch across the mud. The {victim} climbed onto it and came back to dry "
     "ground, one step at a time."),
    ("on a thin branch high above the river", ("kitten", "squirrel"),
     "{He} climbed up slowly and did not look down. Then {he} put the {victim} into {his} bag and "
     "climbed back to the ground."),
    ("in the middle of a thorn bush", ("bird", "rabbit", "kitten", "mouse"),
     "{He} pushed the sharp thorns aside with a stick. It hurt a little, but {he} did not stop "
     "until the {victim} was free."),
    ("in an old fishing net", ("duckling", "rabbit", "puppy", "squirrel"),
     "{He} pulled at the knots, one after another. It took a long time, but at last the net fell "
     "open."),
)  # fmt: skip
SKILLS = (
    ("swim", "{He} splashed about and got water in {his} nose", "{He} sank like a stone",
     "{He} kicked slowly and kept {his} head up, and soon {he} was swimming across the pond"),
    ("whistle", "{He} blew and blew, but no sound came out", "Only a soft hiss came out",
     "{He} took a deep breath, and a clear, high note rang out over the trees"),
    ("fly a kite", "The kite fell on {his} head", "The kite got stuck in a bush",
     "{He} ran into the wind, and the kite went up and up until it was a tiny dot"),
    ("skip stones", "The first stone fell into the water with a plop", "The next one sank too",
     "{He} threw a flat stone, and it jumped over the water five times"),
    ("bake bread", "The first loaf was as hard as a rock", "The second loaf was black",
     "The third loaf was soft and golden, and the whole kitchen smelled of it"),
    ("catch a ball", "The ball bounced off {his} nose", "The ball rolled away into the bushes",
     "{He} kept {his} eyes on the ball and caught it with both hands"),
    ("dance", "{He} stepped on {his} own feet", "{He} turned around too fast and fell down",
     "{He} listened to the music, and {his} feet began to move all by themselves"),
    ("play the flute", "It sounded like a squeaky door", "All the birds flew away",
     "{He} played a sweet little song, and the birds came back to listen"),
    ("climb the big oak tree", "{He} slid down with a bump", "{He} got stuck on the first branch",
     "{He} went from branch to branch, and soon {he} could see the whole valley from the top"),
    ("tie a knot", "The rope fell apart in {his} hands", "The knot would not hold at all",
     "{He} went over, under and through, and the knot held fast"),
)  # fmt: skip
NOISES = (
    ("Tap, tap, tap", "a branch that was knocking at the window"),
    ("Scratch, scratch", "a tiny hedgehog that was looking for apples"),
    ("Hoo, hoo", "a baby owl that was calling for its mother"),
    ("Drip, drip, drip", "a drop of water that fell from the roof into a bucket"),
    ("Bump, bump", "the garden gate, which was swinging in the wind"),
    ("Rustle, rustle", "a lost kitten that was sleeping in the dry leaves"),
)
PLANTS = (
    ("sunflower", "It was taller than {hero}, and its face was as yellow as the sun"),
    ("pumpkin plant", "Soon a big, round pumpkin lay in the grass"),
    ("strawberry plant", "It was full of sweet red strawberries"),
    ("rose bush", "Its flowers were as red as the evening sky"),
    ("bean plant", "It climbed all the way up to the roof"),
    ("tulip", "It opened its red petals every morning"),
)
PROJECTS = (
    ("a raft", "sail down the river", "The raft floated on the water like a leaf"),
    ("a tree house", "be close to the stars", "The tree house was strong and had a round window"),
    ("a swing", "fly up to the sky", "The swing went up so high that it almost touched the leaves"),
    ("a bridge", "cross the stream", "The bridge was so strong that everybody could walk over it"),
    ("a cart", "ride down the hill", "The cart rolled down the hill as fast as the wind"),
)
BREAKABLES = ("blue vase", "big jug", "glass lamp", "flower pot", "green teapot", "favorite cup")
GAMES = ("hide and seek", "tag", "catch", "marbles", "a game of chase")
FOUND = ("gold coin", "silver ring", "little purse", "shiny key", "silver watch", "red button")
GIFTS = ("a bunch of wild flowers", "a smooth white stone", "a pretty feather", "a shiny shell",
         "a little drawing", "a song that was just for {hero}")  # fmt: skip
LURES = ("a blue butterfly", "a shiny beetle", "a little white cloud", "a leaf in the wind",
         "the song of a bird", "a line of ants")  # fmt: skip
GUIDES = (
    ("Follow the stream", "It runs right past your home"),
    ("Walk toward the brightest star", "It shines above your home"),
    ("Follow the white stones", "They will lead you to your door"),
    ("Go up the hill and look for the smoke of your own chimney", "Then you will know the way"),
)


@dataclass(frozen=True)
class Plot:
    """One story line: its subject for requests, its paragraphs, and the lessons it can end with."""

    name: str
    subject: str
    paragraphs: tuple[str, ...]
    lessons: tuple[str, ...]
    helped_by_friend: bool = False


PLOTS = (
    Plot("lost_toy", "helping a friend", (
        "[{hero} had a~ {toy}|The thing {hero} liked best was {his} {toy}|{His} {elder} had given {hero} "
        "a~ {toy}]. [{He} took it everywhere.|At night it lay beside {his} bed.|{He} played with it "
        "every day.] [But {day}|Then, {day}], the {toy} was gone. {hero} looked {hide1}. {He} looked "
        "{hide2}. [It was not there.|It was nowhere to be found.] {hero} [sat down and began to cry"
        "|felt a tear roll down {his} cheek|did not know what to do].",
        "[Just then|Soon|After a while], {fintro} came by. \"[What is wrong|Why are you so sad]?\" asked "
        "{friend}. \"I have lost my {toy},\" said {hero}. \"[Do not worry|Do not be sad],\" said "
        "{friend}. \"[I will help you look for it|We will find it together|Four eyes see more than two].\"",
        "[Together they|The two friends] looked {hide3}. [Then|Suddenly] {friend} [gave a shout"
        "|began to laugh|jumped up and down]. \"Look, [here it is|there it is]!\" {fhe} cried. The "
        "{toy} was {hide4}! {hero} hugged {friend} [and would not let go|with all {his} might"
        "|and laughed out loud]. \"Thank you,\" {he} said. \"[You are a true friend|You are the best "
        "friend in the world].\"",
    ), ("a friend makes every problem smaller", "it is good to have a friend who helps you",
        "two friends can do more than one"), helped_by_friend=True),
    Plot("sharing", "sharing", (
        "{Day}, {his} {elder} gave {hero} {treat}. [It smelled wonderful.|{hero} could not wait to taste "
        "it.|What a wonderful present!] {He} carried it to [a quiet spot under a tree|a soft "
        "place in the grass|a big flat rock] [and sat down|to eat it all alone].",
        "[Then|Just then|Before the first bite], {fintro} came [along|down the path|by]. \"[I am so hungry"
        "|I have not eaten all day|That looks so good],\" said {friend} [softly|in a small voice"
        "|with a sigh]. {hero} looked at the {treats}. [At first, {he} wanted to keep everything."
        "|Part of {him} wanted to say no.|There was not very much.] But {friend} looked so "
        "[sad|tired|hungry] that {hero} [felt sorry for {fhim}|could not say no].",
        "\"[Sit down next to me|Come and eat with me],\" said {hero}. \"There is enough for both of us.\" "
        "They ate the {treats} [side by side|together] and [told each other funny stories|laughed "
        "until the sun went down|looked at the clouds]. [The next day|A few days later], {friend} came "
        "back with {gift}. \"This is for you,\" {fhe} said, \"because you were so kind to me.\"",
    ), ("food tastes better when you share it", "sharing makes two people happy",
        "a kind heart always has enough to share")),
    Plot("rescue", "being brave", (
        "{Day}, {hero} was [walking alone|on the way home|picking berries] when {he} heard a small "
        "voice. \"Help! Help!\" it cried. {hero} [followed the sound|ran toward the voice|looked around]. "
        "A little {victim} was stuck {trap}!",
        "{hero} was [afraid|scared]. [{His} knees were shaking.|{His} heart went thump, thump, thump.|{He} "
        "wanted to run home.] But there was nobody else to help. \"[Do not be afraid|Hold on],\" {he} "
        "called to the {victim}. \"I am coming!\" {saving}",
        "[At last the {victim} was safe.|Now the {victim} was safe and sound.] \"Thank you,\" said the "
        "{victim}. \"You are [so brave|the bravest {kind} I know].\" \"[I was very scared|My knees are "
        "still shaking],\" said {hero}, [and they both laughed|with a smile]. [When {his} {elder} heard "
        "about it, {he} got a big hug.|That evening, everybody wanted to hear the story.|They went "
        "home together, and from then on they were friends.]",
    ), ("you can be brave even when you are scared", "being brave means helping even when you are afraid",
        "even a small {kind} can do a brave thing")),
    Plot("lost_way", "getting lost", (
        "{Day}, {hero} [followed|ran after] {lure}. {He} went [over the hill and past the old mill|deeper "
        "and deeper into the trees|farther than ever before]. [When {he} stopped|When {he} turned "
        "around], {he} did not know where {he} was. [Everything looked strange.|All the paths looked "
        "the same.] The sun was going down, and {hero} [felt very small|began to cry|wanted to go "
        "home].",
        "{Helper} was sitting [on a fence|beside the path|under a tree]. \"Are you lost[, little one|, my "
        "little friend|]?\" asked the {helpern}. \"Yes,\" said {hero}. \"I [cannot find my way home|do "
        "not know the way home].\" \"[Then listen to me|I can help you],\" said the {helpern}. "
        "\"{guide1}. {guide2}.\"",
        "{hero} thanked the {helpern} and did just that. [The way was long, but {he} did not give up.|{He} "
        "sang a song so that {he} would not be afraid.] [At last|Soon] {he} saw a light in the window. "
        "{His} {elder} ran out and hugged {him}. \"[I was so worried|I am so glad you are back],\" said "
        "{his} {elder}. [There was hot soup for supper|They ate warm bread by the fire], and {hero} "
        "[slept very well that night|told everything that had happened].",
    ), ("it is good to ask for help when you are lost", "it is wise to stay close to home",
        "asking for help is nothing to be afraid of")),
    Plot("skill", "never giving up", (
        "{hero} wanted to learn how to {skill}. [All the others could do it.|{His} {elder} could do it "
        "very well.|It looked so easy.] {Day}, {he} tried for the first time. {fail1}. {He} tried again. "
        "{fail2}. \"I will never learn it!\" said {hero} [and sat down in the grass|and stamped {his} "
        "foot|with tears in {his} eyes].",
        "{Fintro} had been watching. \"[I could not do it at first, either|It took me a long time, too],\" said "
        "{friend}. \"[Try a little every day|Do not stop now|Go slowly and try once more]. I will "
        "[stay with you|help you].\" So {hero} [tried the next day, and the day after that|tried again "
        "and again|practiced every day for a week].",
        "And [then|one day], it worked! {win}. \"[I did it|Look at me]!\" shouted {hero}. {friend} "
        "[clapped and cheered|danced with joy|gave {him} a big hug]. \"[I knew you could do it|I am "
        "proud of you],\" {fhe} said.",
    ), ("you can learn hard things if you keep trying", "practice makes hard things easy",
        "you should never give up too soon"), helped_by_friend=True),
    Plot("storm", "a storm", (
        "One evening, dark clouds came over the hills. [The wind began to howl.|The thunder rolled.] Rain "
        "fell [on the roof like little drums|in big, cold drops]. {hero} [closed the door and lit a "
        "candle|sat by the fire and listened]. Then there was a knock at the door. It was {fintro}, "
        "[wet from head to toe|cold and wet|shaking with cold].",
        "\"The storm has blown away my roof,\" said {friend}. \"[May I come in|Can I stay with you]?\" \"Of "
        "course,\" said {hero}. \"[Come in quickly|Come and sit by the fire].\" {He} gave {friend} [a warm "
        "blanket and a cup of tea|a dry towel and a bowl of soup]. [All night long|While the storm "
        "went on], they told stories and [were not afraid of the thunder|sang songs|ate toast].",
        "In the morning, the storm was over, and a rainbow stood in the sky. \"Now [I will help you|let us] "
        "build a new roof,\" said {hero}. They worked [all day|until noon], and the new roof was even "
        "better than the old one. \"Thank you for [helping me|opening your door],\" said {friend}.",
    ), ("a home is warmer with a friend in it", "it is good to open your door to a friend",
        "a storm is less scary when you are not alone")),
    Plot("quarrel", "saying sorry", (
        "{hero} had a good friend named {friend}. {Day}, the two friends found a~ {toy} {hideout}. \"It is "
        "mine!\" said {hero}. \"No, I saw it first!\" said {friend}. They both pulled [as hard as they "
        "could|and pulled]. Crack! The {toy} broke. {friend} went home without a word, and {hero} "
        "went home, too.",
        "{hero} sat alone [by the window|under a tree|in {his} room]. [It was very quiet.|Nothing was fun "
        "anymore.] {He} thought about {friend}. \"[A {toyn} cannot laugh with me|I was not kind],\" "
        "{he} thought. So {he} [walked to {friend}'s door|ran to find {friend}]. \"I am sorry,\" said "
        "{hero}. \"I [should not have pulled|wanted to have it all for myself].\" \"I am sorry, too,\" "
        "said {friend}.",
        "They fixed the {toy} [with string and glue|together]. It did not look [new|perfect], but [it worked"
        "|they liked it even more]. After that, they [took turns|played with it together], and nobody "
        "had to pull. [Soon they were laughing again.|It was much more fun that way.]",
    ), ("a friend is worth more than a toy", "saying sorry can fix a friendship",
        "taking turns is better than fighting")),
    Plot("honesty", "telling the truth", (
        "{Day}, {hero} was playing inside with a~ {toy}, although {his} {elder} had said, \"Please play "
        "outside.\" Crash! {His} {elder}'s {breakable} fell [off the shelf|to the floor] and broke. "
        "[Nobody had seen it.|The house was very quiet.] {hero} [quickly hid|hid] the pieces {hidein}.",
        "[At supper, {he} could not eat.|That night, {he} could not sleep.] [There was a heavy feeling in "
        "{his} belly.|{He} felt bad and looked at the floor.] \"[Is something wrong|Are you not "
        "hungry]?\" asked {his} {elder}. {hero} [took a deep breath|began to cry]. \"I broke your "
        "{breakable},\" {he} said. \"I hid the pieces because I was afraid. I am so sorry.\"",
        "{His} {elder} was quiet for a moment. \"[Thank you for telling me|I am glad you told me the "
        "truth],\" {his} {elder} said. \"[A thing can be fixed, but the truth is more important|That "
        "was not easy to say].\" Together they [glued the pieces|cleaned up the pieces], and {hero} "
        "felt [light as a feather|much better].",
    ), ("telling the truth makes your heart light", "it is always better to tell the truth",
        "a mistake is smaller when you tell the truth")),
    Plot("new_friend", "making a new friend", (
        "{Day}, {hero} saw somebody new. It was a~ {ftrait} {fkind} who [sat all alone|stood behind a tree"
        "|watched the others play]. [Nobody was talking to {fhim}.|The others ran past and did not "
        "stop.] {hero} [walked over|went closer] and said, \"Hello! My name is {hero}. What is your "
        "name?\"",
        "\"I am {friend},\" said the {fkind} [shyly|in a small voice]. \"[I just moved here, and I do not know "
        "anybody|I came here yesterday, and I have no friends yet].\" \"[Then I will be your first "
        "friend|Now you know me],\" said {hero}. \"Would you like to play {game}?\" {friend} [smiled for "
        "the first time|nodded happily].",
        "They played {game} [all afternoon|until the sun went down]. Then {hero} showed {friend} [the best "
        "place to see the stars|the sweetest berries|the tall tree on the hill]. \"I was afraid that "
        "nobody would like me,\" said {friend}. \"[I like you very much|That was silly],\" said "
        "{hero}, and they both [laughed|smiled]. [The next day, they played with all the others, too.|"
        "After that, they met every day.]",
    ), ("a kind word can start a friendship", "nobody should have to play alone",
        "a new friend may be only one hello away")),
    Plot("building", "working together", (
        "{hero} had a dream. {He} wanted to build {project} and {purpose}. {Day}, {he} began. [But the wood "
        "was too heavy.|But it was hard work.] {He} pushed and pulled, and everything fell down. \"I "
        "cannot do this alone,\" said {hero} [with a sigh|and wiped {his} nose].",
        "{Fintro} [heard {him}|saw it]. \"[I have a strong rope|I have some nails and a hammer],\" said "
        "{friend}. \"[May I help?|Let me help you.]\" {Helper} came, too. \"I know how to [tie good "
        "knots|make it strong],\" said the {helpern}. So they all worked together. {hero} [held the "
        "wood|carried the wood], {friend} [pulled the rope|hit the nails], and the {helpern} [told "
        "them what to do|sang a song].",
        "[By evening|After three days], it was done. {done}. [They all cheered.|Everybody clapped.] \"[We did "
        "it together|Now it belongs to all of us],\" said {hero}. \"[Who wants to try it first?|Come on, "
        "let us try it!]\"",
    ), ("big work is easy when friends work together", "many friends can do what one cannot do alone",
        "it is more fun to build things together"), helped_by_friend=True),
    Plot("noise", "a strange noise at night", (
        "One night, {hero} woke up. It was very dark. \"{noise},\" [went something outside|came a sound from "
        "outside]. {hero} pulled the blanket over {his} head. \"{noise},\" it went again. \"[Maybe it is "
        "a monster|What can it be],\" {he} thought[|, and {his} heart beat fast].",
        "[After a while|Then], {hero} thought, \"If I do not look, I will be afraid all night.\" {He} lit a "
        "little lantern and [put on {his} slippers|tiptoed to the door]. [Step by step, {he} went "
        "outside.|Slowly, {he} opened the door.] {He} held up the light. It was only {cause}!",
        "{hero} [laughed out loud|had to laugh]. \"[You gave me such a fright|So that is what you are],\" {he} "
        "said. [Then {he} went back to bed and slept until the morning.|Soon {he} was asleep again.] At "
        "breakfast, {he} told {his} {elder} [all about it|the whole story]. \"[That was brave of you|How "
        "brave you are],\" said {his} {elder}.",
    ), ("things are less scary when you look at them in the light", "it is brave to look at what you fear",
        "the dark is not as scary as it seems")),
    Plot("seed", "waiting", (
        "{Day}, {his} {elder} gave {hero} a tiny seed. \"[Plant it and take good care of it|Give it water and "
        "sunshine],\" said {his} {elder}. {hero} [made a small hole|dug a hole in the soft earth] and put "
        "the seed inside. {He} gave it water every morning. But [day after day, nothing happened|after "
        "a week, there was still nothing to see].",
        "\"[My seed is broken|It will never grow],\" said {hero} to {fthe}. \"[I think I will dig "
        "it up|I do not want to wait any longer].\" \"[Please do not do that|Wait a little longer],\" "
        "said {friend}. \"It is [working under the ground, where you cannot see it|growing in the "
        "dark, very slowly].\" So {hero} waited and [watered it every day|sang to it every evening].",
        "[Then, one morning|At last], a small green leaf came out of the ground. It grew and grew. It became a "
        "beautiful {plant}. {grown}. {hero} [danced around it|was so happy] and [called {friend} to "
        "see it|showed it to everybody].",
    ), ("good things take time", "you must be patient with small things", "waiting is hard, but it is worth it"),
        helped_by_friend=True),
    Plot("birthday", "a birthday", (
        "It was {hero}'s birthday. {He} [jumped out of bed|woke up early] and ran to see {fthe}. "
        "But {friend} said, \"I am [very busy|in a hurry] today,\" and [went away|closed the door]. "
        "{hero} went to see {helper}. \"I have no time,\" said the {helpern}. [Nobody said happy "
        "birthday.|Nobody wanted to play.]",
        "{hero} [walked around alone all day|sat by the water and threw stones]. \"They have all forgotten "
        "me,\" {he} thought, [and a tear ran down {his} cheek|and {he} felt very sad]. When it got dark, "
        "{he} went home. [The house was dark, too.|There was no light in the window.] {hero} opened the "
        "door.",
        "\"Surprise!\" shouted {friend}. \"Happy birthday!\" cried the {helpern}. [Candles|Lanterns] were "
        "shining everywhere. On the table was {treat}, and next to it lay a~ {toy} with a "
        "ribbon on it. \"[We were busy all day because we made this for you|We did not forget you at "
        "all],\" said {friend}. They [sang and danced|ate and laughed] until late at night.",
    ), ("good friends do not forget you", "sometimes friends keep a secret to make you happy",
        "you should not be sad too soon")),
    Plot("sick_friend", "being kind", (
        "Every day, {hero} played with {fthe}. But {day}, {friend} did not come. {hero} waited "
        "[by the gate|under the big tree] [for a long time|until noon]. Then {he} went to {friend}'s "
        "home and knocked. \"Come in,\" said a weak voice. {friend} was in bed [with a red nose|with a "
        "bad cold].",
        "\"[I feel so hot and tired|My head hurts],\" said {friend}. \"I cannot play today.\" \"Then I will take "
        "care of you,\" said {hero}. {He} made [hot soup|tea with honey] and [put a cool cloth on "
        "{friend}'s head|brought another pillow]. Then {he} [told a funny story|sang a quiet song] "
        "until {friend} fell asleep.",
        "{hero} came back every day with [a flower|a new story|fresh soup]. [Soon|After three days], {friend} "
        "was well again. \"[You made me well|Your visits were the best medicine],\" said {friend}. "
        "[They ran outside and played {game}.|They went out into the sun and laughed.]",
    ), ("kindness is the best medicine", "a good friend comes when you are sick",
        "small kind things can help a lot")),
    Plot("greedy", "eating too much", (
        "{Day}, {his} {elder} brought home {treat}. \"[Take a little and leave the rest for later|This is for the whole "
        "family],\" said {his} {elder} and went [out to the garden|to the market]. {hero} ate a little. "
        "The {treats} tasted so good! {He} ate some more, and then some more. [Soon|In the end], there "
        "was nothing left.",
        "[Then {his} belly began to hurt.|Oh, how {his} belly hurt!] {hero} lay down [on the floor|in the grass] "
        "and groaned. When {fthe} came to play, {hero} could not get up. \"[I ate too "
        "much|I ate everything],\" {he} said. \"[Now I feel terrible|Now I cannot even laugh].\"",
        "{His} {elder} came back and [shook {his_elder} head|saw what had happened]. \"Did you eat [it all|everything"
        "]?\" \"Yes, I ate it all, and I am sorry,\" said {hero}. {His} {elder} made {him} "
        "[a cup of tea|some warm tea] [and covered {him} with a blanket|and sat beside {him}]. The next "
        "day, {hero} [helped to get more|brought new {treats} for everybody] and ate only a little.",
    ), ("too much of a good thing is not good", "it is better to stop when you have had enough",
        "a little is often enough")),
    Plot("race", "a race", (
        "{Day}, there was a big race to [the old mill|the top of the hill|the tall pine tree]. {hero} wanted to "
        "win. So did {fintro}. \"[I am the fastest of all|You will never catch me],\" said {friend}. "
        "\"We will see,\" said {hero}. \"Ready, set, go!\" [called {helper}|cried {helper}], and off they "
        "ran.",
        "{friend} was in front. [{hero} ran as fast as {he} could.|{hero} was close behind.] Suddenly, {friend} "
        "[tripped over a root|slipped on a wet stone] and fell. \"Ouch, my foot!\" {fhe} cried. {hero} "
        "[could see the finish|could have won now]. But {he} [stopped and turned back|did not run on]. "
        "\"[Lean on me|Take my hand],\" {he} said. \"We will go on together.\"",
        "[Slowly, step by step|Side by side], the two of them [reached the end|crossed the line]. Everybody "
        "[cheered|clapped]. \"Why did you [stop|turn back]?\" asked {friend}. \"You could have won!\" \"[I like having "
        "a friend more than winning|Winning alone is no fun],\" said {hero}. They [shared the prize"
        "|each got half of the prize], which was {treat}.",
    ), ("helping is better than winning", "a friend matters more than a prize",
        "you win the most when you help others")),
    Plot("found", "being honest", (
        "{Day}, {hero} found a {found} {hideout}. [How it shone!|It was so pretty!] \"[Now it is mine|I will "
        "keep it],\" {he} thought, and put it into {his} pocket. On the way home, {he} met {fintro}. "
        "{friend} was looking at the ground [and walking in circles|with a sad face].",
        "\"What are you looking for?\" asked {hero}. \"I have lost my {found},\" said {friend}. \"[It belonged to "
        "my {elder}|It was a present from my {elder}].\" {hero} [put a hand into {his} pocket|felt {his} "
        "ears grow hot]. {He} wanted to keep the {found}. But [it was not {his} to keep|{he} could "
        "not look {friend} in the eye].",
        "\"Here,\" said {hero}. \"I found it {hideout}. It is yours.\" {friend} [jumped for joy|had tears of joy in "
        "{fhis} eyes]. \"[You are so honest!|How can I thank you?]\" {fhe} said. {Fhe} [invited {hero} "
        "for cake|gave {hero} {gift}], and {hero} was [happier than before|glad from head to toe].",
    ), ("it feels good to give back what is not yours", "being honest can win you a friend",
        "an honest heart is worth more than treasure")),
    Plot("small_hero", "being small", (
        "{hero} was the smallest of all. \"I wish I were big,\" {he} often said. \"[Nobody needs somebody so small"
        "|Small ones cannot do anything].\" {Day}, {his} {elder} came out of the house and could not get "
        "back in. The wind had shut the door, and the key was inside! [{His} {elder} pushed and pushed.|"
        "Everybody came to help, but the door did not move.]",
        "{Fintro} looked up. \"There is a tiny window next to the roof,\" said {friend}. \"But [we are all too big."
        "|who could fit through it?]\" \"I can!\" said {hero}. {friend} lifted {him} up. {hero} "
        "[wiggled and wiggled|held {his} breath], and plop, {he} was inside. {He} took the key and "
        "opened the door.",
        "\"[Hooray for {hero}|You saved the day]!\" everybody shouted. {His} {elder} [hugged {him}|kissed {him} on "
        "the nose]. \"[I am so glad that you are small|You are just the right size],\" said {his} {elder}. "
        "{hero} [smiled from ear to ear|felt ten feet tall].",
    ), ("small ones can do big things", "it is good to be just the way you are",
        "you do not have to be big to be a help"), helped_by_friend=True),
)  # fmt: skip

OPENINGS = (
    "Once upon a time, there was a~ {looks} {kind} named {hero}. {He} lived in {home} {place}.",
    "Once upon a time, there was a {size} {kind} named {hero}. {He} was very {trait} and lived {place}.",
    "Once upon a time, a~ {trait} {kind} named {hero} lived {place} with {his} {elder}.",
    "Once upon a time, there lived {place} a~ {trait} {kind}. {His} name was {hero}.",
    "Once upon a time, in {home} {place}, there lived a {size} {kind} named {hero}.",
    "Once there was a {size} {kind} called {hero}, who lived in {home} {place}.",
    "Long ago, a~ {trait} {kind} named {hero} lived in {home} {place}.",
    "{hero} was a~ {looks} {kind}. {He} lived in {home} {place}.",
    "{hero} the {kind} lived {place}. {He} was {size} and very {trait}.",
    "There once was a~ {trait} {kind} named {hero}, who lived {place}.",
    "In {home} {place} lived a {size} {kind} named {hero}.",
    "The {size} {kind} lived in {home} {place}. {His} name was {hero}, and {he} was very {trait}.",
    "This is the story of {hero}, a~ {trait} {kind} who lived {place}.",
    "A~ {trait} {kind} named {hero} lived {place}, in {home}.",
)
OPENING_WEIGHTS = (6, 6, 4, 4, 4, 3, 2, 4, 1, 2, 2, 2, 2, 2)
LIKES = (
    "{He} loved to {hobby1} and {hobby2}.",
    "Every day, {he} liked to {hobby1}.",
    "Most of all, {he} loved to {hobby1}.",
    "{hero} liked to {hobby1}, and {he} liked to {hobby2}, too.",
    "Whenever {he} could, {he} would {hobby1}.",
    "",
)
ENDINGS = (
    "{hero} learned that {lesson}.",
    "That day, {hero} learned that {lesson}.",
    "From that day on, {hero} knew that {lesson}.",
    "And {hero} never forgot that {lesson}.",
    "Now {hero} knew that {lesson}.",
    "{hero} fell asleep with a smile that night, because now {he} knew that {lesson}.",
)
CLOSINGS = ("", "", "", " The end.", " And that is the end of the story.")

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_ARTICLE = re.compile(r"\b([Aa])~ (?=(\w+))")


class Slots(dict[str, str]):
    """The words of one story by slot name; `Name` is `name` with its first letter capital."""

    def __missing__(self, key: str) -> str:
        """Return the lower-case slot's value, capitalised; an unknown slot is a KeyError."""
        lower = key[0].lower() + key[1:]
        if lower == key:
            raise KeyError(f"demo_stories: slot {{{key}}} is unknown")
        value = self[lower]
        at = 1 if value[0] == "{" else 0
        return value[:at] + value[at].upper() + value[at + 1 :]


def expand(template: str, slots: Slots, rng: random.Random) -> str:
    """Return the template with choices drawn, slots filled (twice: slots may hold slots) and a/an set."""
    while "[" in template:
        template = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template)
    while "{" in template:
        template = template.format_map(slots)
    return _ARTICLE.sub(lambda match: match[1] + ("n " if takes_an(match[2]) else " "), template)


def takes_an(word: str) -> bool:
    """Return whether "an" and not "a" stands before the word (one of this module's words)."""
    return word == "honest" or (word[0] in "aeiou" and word != "unicorn")


@dataclass(frozen=True)
class Character:
    """One of the cast: a name, what it is, and its pronoun (`he` or `she`)."""

    name: str
    kind: Kind
    pronoun: str


def draw_name(rng: random.Random, pronoun: str, made_up: float = 0.25) -> str:
    """Return a name that fits the pronoun; the made-up share teaches to follow any name."""
    roll = rng.random()
    if roll < made_up:
        name = ""
        for _ in range(rng.choice((1, 1, 2))):
            name += rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS)
        name = (name + rng.choice(LAST_LETTERS)).capitalize()
        if len(name) > 2 and name not in MALE_NAMES + FEMALE_NAMES:
            return name
    if roll < made_up + 0.12:
        return rng.choice(EITHER_NAMES)
    return rng.choice(MALE_NAMES if pronoun == "he" else FEMALE_NAMES)


def draw_kind(rng: random.Random, group: str = "") -> Kind:
    """Return a kind, of the group if one is named; a third are ones that no question is about."""
    kinds = rng.choice((KINDS, KINDS, KINDS, KINDS, ALSO, ALSO, FOLK))
    if group in ("", "house") and rng.random() < 0.05:
        kinds = OBJECTS
    if group == "house" and kinds is ALSO:
        kinds = FOLK
    if group not in ("", "house") and kinds is FOLK:
        kinds = KINDS
    return rng.choice([kind for kind in kinds if group in ("", kind.group)])


def draw_character(
    rng: random.Random, kind: Kind | None = None, unlike: Character | None = None
) -> Character:
    """Return a character; `unlike` makes its kind and the first letter of its name differ."""
    while kind is None or (unlike is not None and kind.word == unlike.kind.word):
        near = unlike is not None and rng.random() < 0.6
        kind = draw_kind(rng, unlike.kind.group if near and unlike is not None else "")
    pronoun = kind.pronoun or rng.choice(("he", "she"))
    made_up = 0.25 if unlike is None else 0.08
    name = draw_name(rng, pronoun, made_up)
    while unlike is not None and name[0] == unlike.name[0]:
        name = draw_name(rng, pronoun, made_up)
    return Character(name, kind, pronoun)


def pronoun_slots(pronoun: str, prefix: str) -> dict[str, str]:
    """Return the subject, object and possessive slots of `he` or `she`, each with the prefix."""
    him, his = ("him", "his") if pronoun == "he" else ("her", "her")
    return {prefix + "he": pronoun, prefix + "him": him, prefix + "his": his}


@dataclass(frozen=True)
class Story:
    """A finished story and what a reader could be asked about it."""

    text: str
    plot: Plot
    hero: Character
    friend: Character
    trait: str
    place: str
    lesson: str


def write_story(
    rng: random.Random,
    kind: Kind | None = None,
    name: str = "",
    plot: Plot | None = None,
    toy: str = "",
    trait: str = "",
) -> Story:
    """Return a story; a given kind, name, plot, toy (in the plots that have one) or trait is kept."""
    hero = draw_character(rng, kind)
    if name:
        pronoun = "he" if name in MALE_NAMES else "she" if name in FEMALE_NAMES else hero.pronoun
        hero = Character(name, hero.kind, hero.kind.pronoun or pronoun)
    friend = draw_character(rng, unlike=hero)
    trait = trait or lean(rng, TRAITS, hero.kind.word)
    if plot is None:
        fitting = PLOT_OF_TRAIT[trait] if rng.random() < 0.4 else ""
        plot = next((plot for plot in PLOTS if plot.name == fitting), None) or rng.choice(PLOTS)
    slots = draw_slots(rng, hero, friend, trait)
    if toy:
        slots["toy"], slots["toyn"] = toy, toy.split()[-1]
    slots["lesson"] = expand(rng.choice(plot.lessons), slots, rng)
    opening = rng.choices(OPENINGS, OPENING_WEIGHTS)[0]
    if hero.kind.word in CHILD and opening.startswith("{hero} the"):
        opening = OPENINGS[0]
    first = f"{opening} {rng.choice(LIKES)}".strip()
    last = rng.choice(ENDINGS) + rng.choice(CLOSINGS)
    start, *rest = plot.paragraphs
    if start.startswith("{Day}, ") and rng.random() < 0.3:
        start = start.removeprefix("{Day}, ")
        at = 1 if start[0] == "{" else 0
        start = "It was a {day_name}. {sky} " + start[:at] + start[at].upper() + start[at + 1 :]
    text = "\n\n".join(expand(part, slots, rng) for part in (first, start, *rest, last))
    return Story(text, plot, hero, friend, slots["trait"], slots["place"], slots["lesson"])


def lean(rng: random.Random, options: Sequence[Option], key: str) -> Option:
    """Return one of the options, in three draws of ten the one that belongs to the key.

    Without it the most likely story would be the same one for every hero; with it greedy decoding
    has something to follow.
    """
    if rng.random() < 0.3:
        return options[zlib.crc32(key.encode()) % len(options)]
    return rng.choice(options)


def draw_slots(rng: random.Random, hero: Character, friend: Character, trait: str) -> Slots:
    """Return every slot of a story about these two, drawn once so that the story agrees with itself."""
    slots = Slots(hero=hero.name, friend=friend.name, kind=hero.kind.word, fkind=friend.kind.word)
    slots.update(pronoun_slots(hero.pronoun, ""))
    slots.update(pronoun_slots(friend.pronoun, "f"))
    slots["trait"] = trait
    slots["ftrait"] = rng.choice([other for other in TRAITS if other != trait])
    slots["size"] = rng.choice(SIZES)
    slots["looks"] = "{trait} little" if slots["size"] == "little" else "{size}, {trait}"
    slots["home"] = rng.choice(HOMES[hero.kind.group])
    slots["place"] = lean(rng, PLACES[hero.kind.group], hero.kind.word)
    slots["elder"] = lean(rng, ELDERS, hero.kind.word)
    slots["his_elder"] = "her" if slots["elder"].endswith("mother") else "his"
    slots["hobby1"] = lean(rng, HOBBIES, hero.kind.word)
    slots["hobby2"] = rng.choice([other for other in HOBBIES if other != slots["hobby1"]])
    slots["toyn"] = lean(rng, TOYS, hero.kind.word)
    slots["toy"] = f"{lean(rng, COLORS, hero.kind.word)} {slots['toyn']}"
    slots["treat"], slots["treats"] = lean(rng, TREATS, hero.kind.word)
    slots["helper"], slots["helpern"] = rng.choice(
        [pair for pair in HELPERS if pair[1] not in (hero.kind.word, friend.kind.word)]
    )
    slots["hidein"], slots["hideout"] = rng.choice(HIDING_INSIDE), rng.choice(HIDING_OUTSIDE)
    for index, hiding in enumerate(rng.sample(HIDING_INSIDE + HIDING_OUTSIDE, 4), 1):
        slots[f"hide{index}"] = hiding
    weather = rng.choice(tuple(SKY))
    slots["day_name"] = f"{weather} {rng.choice(('morning', 'morning', 'afternoon', 'day'))}"
    slots["day"] = "one {day_name}"
    slots["sky"] = rng.choice(SKY[weather])
    slots["trap"], victims, slots["saving"] = rng.choice(RESCUES)
    slots["victim"] = rng.choice([word for word in victims if word != hero.kind.word])
    slots["skill"], slots["fail1"], slots["fail2"], slots["win"] = lean(rng, SKILLS, trait)
    slots["noise"], slots["cause"] = lean(rng, NOISES, trait)
    slots["plant"], slots["grown"] = lean(rng, PLANTS, hero.kind.word)
    slots["project"], slots["purpose"], slots["done"] = lean(rng, PROJECTS, hero.kind.word)
    slots["guide1"], slots["guide2"] = lean(rng, GUIDES, hero.kind.word)
    slots["breakable"] = lean(rng, BREAKABLES, hero.kind.word)
    slots["game"] = rng.choice(GAMES)
    slots["found"] = lean(rng, FOUND, hero.kind.word)
    slots["gift"] = rng.choice(GIFTS)
    slots["lure"] = lean(rng, LURES, hero.kind.word)
    slots["fintro"] = rng.choice(introductions(friend))
    slots["fthe"] = "{his} friend {friend}" if friend.kind.word in CHILD else "{friend} the {fkind}"
    return slots


def introductions(friend: Character) -> Sequence[str]:
    """Return the ways in which a story may first name the hero's friend."""
    if friend.kind.word in CHILD:
        return (
            "{his} friend {friend}",
            "a {fkind} named {friend}",
            "a~ {ftrait} {fkind} named {friend}",
        )
    return ("{friend} the {fkind}", "{friend} the {fkind}", "{his} friend {friend} the {fkind}",
            "a~ {ftrait} {fkind} named {friend}")  # fmt: skip


def story_of_index(seed: int, index: int) -> Story:
    """Return story `index` of the endless list that `seed` names."""
    return write_story(random.Random(f"story {seed} {index}"))


def main() -> None:
    """Print stories, for reading the grammar's English."""
    parser = argparse.ArgumentParser(description="Print stories of the demo model's training text.")
    parser.add_argument("--count", type=int, default=3, help="stories to print (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="which list of stories (default 0)")
    arguments = parser.parse_args()
    for index in range(arguments.count):
        print(story_of_index(arguments.seed, index).text, end="\n\n-----\n\n")


if __name__ == "__main__":
    main()
