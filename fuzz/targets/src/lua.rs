//! Channel programs.

use millpond_lua::{Error, Limits, Lua};

/// Few instructions and little memory, so that most of the time goes to inputs and not to loops.
const LIMITS: Limits = Limits {
    instructions: 50_000,
    memory_bytes: 1 << 20,
};
/// Work that one instruction may do before the limit is looked at.
const INSTRUCTIONS_BEYOND: u64 = 100_000;

/// A program is refused, or runs within its limits, twice with the same objects.
pub fn program(data: &[u8]) {
    let mut lua = Lua::new(LIMITS).expect("the library fits");
    let program = match lua.load(data, "fuzz") {
        Ok(program) => program,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    for _ in 0..2 {
        let argument = lua.table();
        let Ok(argument) = argument else {
            return;
        };
        match lua.call(&program, &[argument]) {
            Ok(results) => {
                for value in &results {
                    let _ = (lua.bytes(value), lua.entries(value), value.type_name());
                }
            }
            Err(Error::Runtime { traceback, .. }) => assert!(traceback.starts_with("stack")),
            Err(_) => {}
        }
        assert!(lua.memory_bytes() <= LIMITS.memory_bytes);
        assert!(lua.instructions_used() <= LIMITS.instructions + INSTRUCTIONS_BEYOND);
    }
}
