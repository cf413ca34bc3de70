import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;
import java.util.stream.Collectors;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Transactions of one record each, one after the other, timed. The last line it prints is a JSON object with the
 * seconds that the measured ones took and the milliseconds of each commit.
 *
 * Usage: java -cp "JARS/*" TransactionLoop.java BOOTSTRAP TOPIC TRANSACTIONAL_ID WARM_UP COUNT VALUE
 */
public class TransactionLoop {
    private final KafkaProducer<byte[], byte[]> producer;
    private final String topic;
    private final byte[] value;

    private TransactionLoop(KafkaProducer<byte[], byte[]> producer, String topic, byte[] value) {
        this.producer = producer;
        this.topic = topic;
        this.value = value;
    }

    public static void main(String[] args) {
        try {
            measure(args);
        } catch (Exception error) {
            // Java's launcher of source files fails itself on what was thrown in another thread, and tells nothing.
            System.err.println(error);
            System.exit(1);
        }
    }

    private static void measure(String[] args) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", args[0],
            "transactional.id", args[2],
            "linger.ms", "0");
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            producer.initTransactions();
            TransactionLoop loop =
                new TransactionLoop(producer, args[1], args[5].getBytes(StandardCharsets.UTF_8));
            loop.run(Integer.parseInt(args[3]));
            long startedNs = System.nanoTime();
            double[] commitMs = loop.run(Integer.parseInt(args[4]));
            double seconds = (System.nanoTime() - startedNs) / 1e9;
            String samples = Arrays.stream(commitMs).mapToObj(Double::toString).collect(Collectors.joining(","));
            System.out.println("{\"seconds\":" + seconds + ",\"commit_ms\":[" + samples + "]}");
        }
    }

    /** The milliseconds that each commit took. */
    private double[] run(int count) throws Exception {
        double[] commitMs = new double[count];
        for (int number = 0; number < count; number++) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, value));
            long beforeNs = System.nanoTime();
            producer.commitTransaction();
            commitMs[number] = (System.nanoTime() - beforeNs) / 1e6;
        }
        return commitMs;
    }
}
