//! Frequent given names and surnames (US and Western Europe, South and East Asia); sorted when [`super::names`] is
//! built.

/// Given names that are rarely anything else.
pub(super) const GIVEN: &str = "Aaron Abdul Abigail Adam Adrian Ahmed Aisha Akira Alan Albert Alejandro Alex Alexander \
Alexandra Alexis Alfred Ali Alice Alicia Alison Amanda Amelia Amit Amy Ana Anders Andrea Andreas Andrew Angela Anita Anja \
Ann Anna Anne Annette Anthony Antonio Arjun Arthur Ashley Barbara Beatrice Benjamin Bernard Beth Betty Beverly Bjorn \
Bradley Brandon Brenda Brian Bruce Bryan Camille Carl Carla Carlos Carmen Carol Caroline Catherine Charles \
Cheryl Chloe Chris Christian Christina Christine Christopher Claire Claudia Claus Colin Craig Cynthia Daniel Daniela \
Danielle David Deborah Debra Deepak Denise Dennis Diana Diane Dimitri Dmitri Dominic Donald Donna Dorothy Douglas \
Dylan Edward Eduardo Eileen Elena Elizabeth Ellen Emily Emma Eric Erik Erika Ethan Eugene Evelyn Fatima Felix Fernando \
Fiona Frances Francesca Francesco Frank Franz Fred Frederick Gabriel Gary Geoffrey George Gerald Gerard Giovanni Giulia \
Gloria Gregory Guillaume Gustav Hannah Hans Harold Harry Hassan Heather Heidi Heinrich Helen Henrik Henry Hiroshi \
Howard Hugo Ian Ibrahim Igor Ines Ingrid Irene Isaac Isabel Isabella Ivan Jack Jacob Jacqueline James Jamie Jan Jane \
Janet Janice Jason Javier Jean Jeff Jeffrey Jennifer Jeremy Jerry Jesse Jessica Jill Jim Joan Joanna Joe Joel Johan \
Johannes John Johnny Jonathan Jorge Joseph Joshua Joyce Juan Judith Judy Julia Julian Julie Jürgen Justin Kai Karen \
Karl Katarina Kate Katherine Kathleen Kathryn Katie Keith Kelly Kenji Kenneth Kevin Kimberly Klaus Kristen Kristina Kumar \
Kyle Larissa Larry Lars Laura Lauren Lawrence Leah Leon Leonardo Lena Linda Lisa Louis Louise Luca Lucas Lucia \
Lucy Luke Magdalena Manuel Marcel Marco Marcus Margaret Maria Marie Marilyn Mario Marta Martha Martin Martina Mary \
Mateo Matthew Matthias Maurice Maxime Megan Mei Melissa Michael Michelle Miguel Mikhail Mohamed Mohammed Monica Muhammad \
Nancy Natalia Natalie Natasha Nathan Nicholas Nicolas Nicole Nina Noah Nora Olga Oliver Olivia Omar Oscar Pablo Pamela \
Patricia Patrick Paul Paula Pauline Pedro Peter Petra Philip Philippe Pierre Priya Rachel Rafael Rahul Ralph Raymond \
Rebecca Renata Ricardo Richard Robert Roberto Roger Roland Ronald Rosemary Roy Russell Ruth Ryan Samantha Samuel Sandra \
Sanjay Sara Sarah Scott Sean Sebastian Sergei Sergio Sharon Sheila Shirley Simon Simone Sofia Sophia Sophie Stefan \
Stephanie Stephen Steve Steven Stuart Sunil Susan Suzanne Svetlana Sven Sylvia Takashi Tamara Tanya Teresa Theodore \
Theresa Thomas Tiffany Timothy Todd Tom Tomas Tony Tracy Ulrich Valentina Vanessa Vera Veronica Victor Vijay \
Vikram Vincent Vladimir Walter Wanda Wei Wendy William Wolfgang Xavier Yasmin Yuki Yusuf Yvonne Zachary Zoe";

/// Given names that are also words or places: they count only before a known surname.
pub(super) const AMBIGUOUS: &str = "April Art August Charlotte Diego Helena Jose Lorenzo Luis Victoria Virginia Austin Autumn Bill Bob Brook Carter Chance Charity Chase Chuck Clay \
Crystal Dale Dawn Dean Drew Duke Earl Eden Faith Florence Frank Gene Georgia Glen Grace Grant Guy Heath Holly Hope Hunter \
Iris Ivy Jade Jasmine Jordan Joy June Justice Lance Lee Lily Madison Mark Mason May Melody Mercy Miles Norm Olive Paris \
Parker Pat Pearl Penny Pierce Ray Reed Rich Rob Robin Rod Rose Ruby Rusty Savannah Sally Skip Sky Stone Summer Sue Sydney \
Taylor Trinity Tyler Violet Wade Ward Will Willow Woody";

pub(super) const SURNAMES: &str = "Adams Ahmed Alexander Ali Allen Alvarez Andersen Anderson Andersson Bailey Baker Barnes \
Bauer Becker Bell Bennett Bernard Bianchi Brooks Brown Bryant Butler Campbell Carter Castillo Chan Chavez Chen Choi Clark \
Coleman Collins Cook Cooper Cox Cruz Davies Davis Diaz Dubois Edwards Evans Fernandez Ferrari Fischer Flores Ford Foster \
Garcia Gomez Gonzalez Gray Green Griffin Gupta Gutierrez Hall Hamilton Hansen Harris Hayes Henderson Hernandez Hill \
Hoffmann Hughes Huang Ivanov Jackson James Jansen Jenkins Jensen Jimenez Johansson Johnson Jones Kaur Kelly Khan Kim King \
Klein Kowalski Kumar Larsen Laurent Lee Leroy Lewis Li Lin Liu Long Lopez Martin Martinez Mendoza Meyer Miller Mitchell \
Moore Morales Moreau Moreno Morgan Morris Müller Muller Murphy Murray Myers Nakamura Nelson Nguyen Nielsen Nilsson Novak \
O'Brien O'Connor Olsen Ortiz Park Parker Patel Patterson Perez Perry Petersen Peterson Petrov Phillips Popov Powell Price \
Ramirez Ramos Reed Reyes Reynolds Richardson Rivera Roberts Robinson Rodriguez Rogers Romano Rossi Ruiz Russell Russo \
Ryan Sanchez Sanders Santos Sato Schmidt Schneider Schulz Scott Sharma Silva Simmons Simpson Singh Smirnov Smith Sokolov \
Stewart Sullivan Suzuki Svensson Tanaka Taylor Thomas Thompson Torres Tran Turner Usman Vargas Vasquez Wagner Walker \
Wallace Wang Ward Washington Watanabe Watson Weber White Williams Wilson Wood Wright Wu Yamamoto Yang Young Zhang Zhao \
Zhou Zimmermann";
