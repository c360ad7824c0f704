#pragma once

/// Exports a name from libscoremod.so; everything else has hidden visibility.
#define SCOREMOD_API __attribute__((visibility("default")))
