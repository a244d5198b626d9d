# about: an ampersand within the title becomes the word `and`
s/^    sed -e /    sed -e 's|\&|and|g' -e /
